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
from copy import copy
from itertools import accumulate, chain
from typing import Any, Final

from driver.errors import DriverError

DEPTH: Final = 128
VALUES: Final = 500_000
NAMESAKES: Final = 20_000
"""How many members of a name, at any depth, are looked at to find those at one depth."""

SLICE: Final = 64 * 1024
"""How many bytes are looked at in one go."""

_LONGEST_NAME: Final = 64
_MEMBER_BYTES: Final = 64 * 1024

_ROUNDS: Final = 3

_SPACE: Final = b" \t\r\n"
_NO_NESTING: Final = bytes(set(range(256)) - set(b'"[{]}'))
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

    Nowhere in the last piece was the depth less than `lowest`.

    Keys do not count as values, and with `values` None nothing does, which takes half the time. Raises JsonRefused
    for a closing bracket too many, JsonTooComplex past a bound.
    """

    def __init__(self, depth: int = DEPTH, values: int | None = VALUES) -> None:
        self._depth_limit = depth
        self._values_limit = values
        self._escape = b""
        self._last = b""
        self.depth = 0
        self.lowest = 0
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
        if self._values_limit is None:
            self._last = self._last or piece.strip(_SPACE)[:1]
            # Of two quotes in a row, whatever they open and close, none changes what the bytes around them are.
            piece = piece.translate(None, _NO_NESTING).replace(b'""', b"")
        parts = piece.split(b'"')
        outside = parts[1 if self.in_string else 0 :: 2]
        self.in_string ^= not len(parts) % 2
        if self._values_limit is None:
            self._nest(b"".join(outside))
            return
        # One quote stands for each string; the one that this piece leaves open is already told.
        text = (b'"'.join(outside) + (b'"' if self.in_string and outside else b"")).translate(None, _SPACE)
        self._count(text, self._values_limit)
        self._nest(text.translate(None, _NO_BRACKETS))

    def _count(self, text: bytes, limit: int) -> None:
        if not text:
            return
        seam = self._last + text
        opened = text.count(b"[") + text.count(b"{")
        empty = seam.count(b"[]") + seam.count(b"{}")
        self.values += text.count(b",") + opened - empty
        self._last = text[-1:]
        # Whether the last bracket is that of an empty one is not known yet.
        if self.values - (self._last in (b"[", b"{")) > limit:
            raise JsonTooComplex(f"more than {limit:,} values")

    def _nest(self, brackets: bytes) -> None:
        # Each round takes the innermost pairs out, and at most one from the depth. Few brackets are left of most texts.
        left = brackets
        for _ in range(_ROUNDS):
            left = left.replace(b"{}", b"").replace(b"[]", b"")
        opened = left.count(b"[") + left.count(b"{")
        closed = len(left) - opened
        if self.depth + opened + _ROUNDS <= self._depth_limit and closed <= self.depth:
            self.lowest = self.depth - closed
            self.depth += opened - closed
            return
        levels = list(accumulate(array("b", brackets.translate(_MOVES)), initial=self.depth))
        if max(levels) > self._depth_limit:
            raise JsonTooComplex(f"nested deeper than {self._depth_limit} levels")
        self.lowest = min(levels)
        if self.lowest < 0:
            raise JsonRefused("a bracket is closed that was not opened")
        self.depth = levels[-1]

    def finish(self) -> None:
        """Raise JsonRefused when the text ends before it is complete."""
        if self.in_string or self.depth or not self._last:
            raise JsonRefused("the JSON text is not complete")


def name_pattern(name: str, *, any_case: bool = False) -> re.Pattern[bytes]:
    """Matches a JSON string that reads `name` (ASCII), however its letters are escaped, less its last quote."""
    letters = [sorted({letter.lower(), letter.upper()}) if any_case else [letter] for letter in name]
    return re.compile(b'"' + b"".join(map(_spellings, letters)) + b'(?=")')


def _spellings(letters: list[str]) -> bytes:
    codes = ["".join(f"[{digit}{digit.upper()}]" for digit in f"{ord(letter):04x}") for letter in letters]
    escaped = [rf"\\u{code}" for code in codes]
    return "(?:{})".format("|".join([*map(re.escape, letters), *escaped])).encode()


class Members:
    """Finds members called `name` in objects at `depth` (1 is the outermost) of one JSON text, slice by slice.

    The whole text is checked on the way, without building a tree: that it is complete, and within the bounds.
    """

    def __init__(self, data: Text, name: re.Pattern[bytes], depth: int, *, step: int = SLICE) -> None:
        self._data = data
        self._name = name
        self._depth = depth
        self._step = step
        # A value and its comma take two bytes: a text as short as this cannot hold too many.
        self._scan = Scan(values=VALUES if len(data) > 2 * VALUES else None)
        self._scanned = 0
        self._seen = 0

    def slices(self) -> Iterator[list[int]]:
        """Where the values of such members begin, a slice at a time.

        Raises JsonRefused; JsonTooComplex past a bound, and for more than 20,000 members of that name.
        """
        for start in range(0, len(self._data), self._step):
            end = min(start + self._step, len(self._data))
            before = copy(self._scan)
            self._scan_to(end)
            if self._scan.lowest > self._depth:
                yield []  # all of this slice lies deeper: most slices of a long request do
                continue
            self._scan, self._scanned = before, start
            yield list(self._search(start, end))
        self._scan.finish()

    def _search(self, start: int, end: int) -> Iterator[int]:
        for match in self._name.finditer(self._data, start, end + _LONGEST_NAME):
            if match.start() >= end:
                break  # the next slice finds it
            colon = _COLON.match(self._data, match.end())
            if not colon:
                continue
            self._seen += 1
            if self._seen > NAMESAKES:
                raise JsonTooComplex(f"more than {NAMESAKES:,} members of one name")
            self._scan_to(match.start())
            if self._scan.depth == self._depth and not self._scan.in_string:
                yield colon.end()
        self._scan_to(end)

    def _scan_to(self, end: int) -> None:
        self._scan.feed(self._data[self._scanned : end])
        self._scanned = end


def members(data: Text, name: re.Pattern[bytes], depth: int) -> Iterator[int]:
    """Where the values of members called `name` begin, in objects at `depth`; see Members."""
    return chain.from_iterable(Members(data, name, depth).slices())


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
