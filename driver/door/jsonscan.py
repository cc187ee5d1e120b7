"""Looks into JSON text without building a tree.

A tree of a 16 MiB message can be many times as large as its text, and every fast parser holds the
interpreter for the whole message. So bounds are checked, and single members found, by bulk operations on
slices of the text. What is read this way is only as valid as it needs to be: brackets and strings are
checked, the rest is the receiver's to judge.
"""

import json
import re
from array import array
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

from driver.errors import DriverError

DEPTH: Final = 128
VALUES: Final = 500_000
NAMESAKES: Final = 20_000
"""How many members of a name, at any depth, are looked at to find those at one depth."""

_SLICE: Final = 128 * 1024
_LONGEST_NAME: Final = 64
_MEMBER_BYTES: Final = 64 * 1024

_SPACE: Final = b" \t\r\n"
_MOVES: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[{]}"))
_COLON: Final = re.compile(rb"\"[ \t\r\n]*+:[ \t\r\n]*+")
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


Text = bytes | bytearray


class JsonRefused(DriverError):
    """The text is no JSON, or beyond a bound."""


class JsonTooComplex(JsonRefused):
    """The text has more values, or is nested deeper, than is allowed."""


class Scan:
    """Reads JSON text piece by piece; knows depth, number of values, and whether it is inside a string.

    Keys do not count as values. Raises JsonRefused for a closing bracket too many, JsonTooComplex past a bound.
    """

    def __init__(self, depth: int = DEPTH, values: int = VALUES) -> None:
        self._limits = (depth, values)
        self._escape = b""
        self._last = b""
        self.depth = 0
        self.values = 1
        self.in_string = False

    def feed(self, piece: Text) -> None:
        piece = self._escape + piece if self._escape else bytes(piece)
        self._escape = b""
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece, self._escape = piece[:-1], b"\\"
        if b"\\" in piece:
            # Pairs first, from the left: what then stands before a quote does escape it.
            if b"\\\\" in piece:
                piece = piece.replace(b"\\\\", b"")
            piece = piece.replace(b'\\"', b"")
        parts = piece.split(b'"')
        outside = parts[1 if self.in_string else 0 :: 2]
        self.in_string ^= not len(parts) % 2
        # One quote stands for each string; the one that this piece leaves open is already told.
        self._count(b'"'.join(outside) + (b'"' if self.in_string and outside else b""))

    def _count(self, text: bytes) -> None:
        text = text.translate(None, _SPACE)
        if not text:
            return
        seam = self._last + text
        opened = text.count(b"[") + text.count(b"{")
        empty = seam.count(b"[]") + seam.count(b"{}")
        self.values += text.count(b",") + opened - empty
        self._last = text[-1:]
        depth, values = self._limits
        # Whether the last bracket is that of an empty one is not known yet.
        if self.values - (self._last in (b"[", b"{")) > values:
            raise JsonTooComplex(f"more than {values:,} values")
        moves = array("b", text.translate(_MOVES, _NO_BRACKETS))
        if moves:
            levels = list(accumulate(moves, initial=self.depth))
            if max(levels) > depth:
                raise JsonTooComplex(f"nested deeper than {depth} levels")
            if min(levels) < 0:
                raise JsonRefused("a bracket is closed that was not opened")
            self.depth = levels[-1]

    def finish(self) -> None:
        """Raise JsonRefused when the text ends before it is complete."""
        if self.in_string or self.depth or not self._last:
            raise JsonRefused("the JSON text is not complete")


def json_bounds(data: Text, depth: int = DEPTH, values: int = VALUES) -> None:
    """Check that a JSON text is complete and within both bounds, without building a tree.

    Raises JsonRefused, and JsonTooComplex past a bound.
    """
    scan = Scan(depth, values)
    for start in range(0, len(data), _SLICE):
        scan.feed(data[start : start + _SLICE])
    scan.finish()


def name_pattern(name: str, *, any_case: bool = False) -> re.Pattern[bytes]:
    """Matches a JSON string that reads `name` (ASCII), however its letters are escaped, less its last quote."""
    letters = [sorted({letter.lower(), letter.upper()}) if any_case else [letter] for letter in name]
    return re.compile(b'"' + b"".join(map(_spellings, letters)) + b'(?=")')


def _spellings(letters: list[str]) -> bytes:
    codes = ["".join(f"[{digit}{digit.upper()}]" for digit in f"{ord(letter):04x}") for letter in letters]
    escaped = [rf"\\u{code}" for code in codes]
    return "(?:{})".format("|".join([*map(re.escape, letters), *escaped])).encode()


def members(data: Text, name: re.Pattern[bytes], depth: int, *, step: int = _SLICE) -> Iterator[int]:
    """Where the values of members called `name` begin, in objects at `depth` (1 is the outermost).

    The whole text is checked on the way as `json_bounds` does it, `step` bytes at a time. Raises
    JsonTooComplex for more than 20,000 members of that name.
    """
    scan = Scan()
    scanned = seen = 0
    for start in range(0, len(data), step):
        end = start + step
        for match in name.finditer(data, start, end + _LONGEST_NAME):
            if match.start() >= end:
                break  # the next slice finds it
            colon = _COLON.match(data, match.end())
            if not colon:
                continue
            seen += 1
            if seen > NAMESAKES:
                raise JsonTooComplex(f"more than {NAMESAKES:,} members of one name")
            scan.feed(data[scanned : match.start()])
            scanned = match.start()
            if scan.depth == depth and not scan.in_string:
                yield colon.end()
        scan.feed(data[scanned:end])
        scanned = max(scanned, min(end, len(data)))
    scan.finish()


def string_at(data: Text, start: int) -> str | None:
    """The string value that begins at `start`, or None where it is none, or longer than 64 KiB."""
    match = _STRING.match(data, start, start + _MEMBER_BYTES)
    if match is None:
        return None
    try:
        value: str = json.loads(match[0])
    except ValueError:
        return None
    return value


def object_at(data: Text, start: int) -> dict[str, Any] | None:
    """The object that begins at `start`, or None where it is none, or longer than 64 KiB."""
    if data[start : start + 1] != b"{":
        return None
    text = data[start : start + _MEMBER_BYTES].decode("utf-8", "replace")
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
