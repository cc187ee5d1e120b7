"""Text of unknown origin, made fit for one line, one column or one bound."""

import json
import os
import re
from collections.abc import Iterator
from typing import BinaryIO, Final

_KIB = 1024
_PIECE_BYTES: Final = 64 * _KIB
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# What some readers take for the end of a line, and git does not.
_SEPARATORS: Final = re.compile(r"[\r\v\f\x1c-\x1e\x85\u2028\u2029]")


def skip_lines(file: BinaryIO, count: int, most: int) -> tuple[int, int]:
    """Move past the next `count` lines, or to the end: how many lines were passed, and how many bytes.

    Fast, whatever the lines are. No more than `most` bytes are read.
    """
    passed = taken = 0
    last = b"\n"
    while passed < count and taken < most and (piece := file.read(min(_PIECE_BYTES, most - taken))):
        ends = piece.count(b"\n")
        if passed + ends >= count:
            at = 0
            for _ in range(count - passed):
                at = piece.index(b"\n", at) + 1
            file.seek(at - len(piece), os.SEEK_CUR)
            return count, taken + at
        passed, taken, last = passed + ends, taken + len(piece), piece[-1:]
    return passed + (last != b"\n"), taken


def lines(file: BinaryIO, longest: int, most: int, *, number: int = 1) -> Iterator[tuple[int, str, bool]]:
    """Each line of a file: its number, its text, and whether it was cut at `longest` bytes.

    The first one is counted as `number`. A line ends at a line feed only, as in git. No line, however long, is held
    whole, and no more than `most` bytes are read, however much the file grows meanwhile.
    """
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


def flat(text: str) -> str:
    """The text with a blank for each character that could look like the end of a line but is none."""
    return _SEPARATORS.sub(" ", text)


def quoted(text: str) -> str:
    """The text behind `| ` on every line, so that nothing in it can look like a part of what quotes it."""
    lines = flat(text.replace("\r\n", "\n").removesuffix("\n")).split("\n")
    return "\n".join(f"| {line}" for line in lines)


def as_name(name: str) -> str:
    """A file's name or path as one line: as it is, or as JSON where it holds what does not print."""
    return name if name.isprintable() else json.dumps(name)


def clean(text: str) -> str:
    """The text without control characters (line feed and tab stay) and without halves of surrogate pairs."""
    return _CONTROL.sub("", text.encode("utf-8", "replace").decode("utf-8"))


def one_line(text: str, limit: int) -> str:
    """The text as one bounded line that a terminal shows as it is."""
    line = "".join(letter if letter.isprintable() else " " for letter in text[: limit + 1])
    line = line.encode("utf-8", "replace").decode("utf-8")
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _decoded(data: bytearray) -> str:
    return flat(data.decode("utf-8", "replace").rstrip("\r\n"))
