"""Text of unknown origin, made fit for one line, one column or one bound."""

import re
from collections.abc import Iterator
from typing import BinaryIO, Final

_KIB = 1024
_PIECE_BYTES: Final = 64 * _KIB
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def lines(file: BinaryIO, longest: int, most: int) -> Iterator[tuple[int, str, bool]]:
    """Each line of a file: its number from 1, its text, and whether it was cut at `longest` bytes.

    A line ends at a line feed only, as in git. No line, however long, is held whole, and no more than
    `most` bytes are read, however much the file grows meanwhile.
    """
    number = 1
    kept = bytearray()
    length = 0
    while most > 0 and (piece := file.readline(min(_PIECE_BYTES, most))):
        most -= len(piece)
        kept += piece[: max(longest - length, 0)]
        length += len(piece)
        if piece.endswith(b"\n"):
            yield number, _decoded(kept), length - 1 > longest
            number, length = number + 1, 0
            kept.clear()
    if length:
        yield number, _decoded(kept), length > longest


def clean(text: str) -> str:
    """The text without control characters (line feed and tab stay) and without halves of surrogate pairs."""
    return _CONTROL.sub("", text.encode("utf-8", "replace").decode("utf-8"))


def one_line(text: str, limit: int) -> str:
    """The text as one bounded line that a terminal shows as it is."""
    line = "".join(letter if letter.isprintable() else " " for letter in text[: limit + 1])
    line = line.encode("utf-8", "replace").decode("utf-8")
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _decoded(data: bytearray) -> str:
    return data.decode("utf-8", "replace").rstrip("\r\n")
