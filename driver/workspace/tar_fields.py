"""The fields of a tar header block and the records of a pax header.

Formats: POSIX.1-2017 pax, "ustar Interchange Format" and "pax Header Block"; the GNU tar manual, "Basic Tar
Format". Everything here raises ValueError that says which rule is broken.
"""

from collections.abc import Iterator
from functools import lru_cache
from struct import Struct
from typing import Final
from zlib import adler32

BLOCK_BYTES: Final = 512
ZERO_BLOCK: Final = bytes(BLOCK_BYTES)

_USTAR: Final = b"ustar\x0000"
_GNU: Final = b"ustar  \0"
# name, mode, (owner, group), size, (time), checksum, type, (link), magic and version, (the like), prefix
_FIELDS: Final = Struct("100s 8s 16x 12s 12x 8s c 100x 8s 80x 155s 12x").unpack
_SIZE_DIGITS: Final = 19  # of 2 ** 63, the largest size that a file system can have


Header = tuple[bytes, bytes, int, bool]
"""One header block: name, the one byte of the type flag, size in bytes, whether the owner may execute it."""


def raw_name(block: bytes) -> bytes:
    """What stands in the name field, for messages about a block that cannot be parsed."""
    return block[:100].partition(b"\0")[0]


def parse_header(block: bytes) -> Header:
    """Parse a header block of ustar, pax or GNU tar."""
    name, mode, size, checksum, kind, magic, prefix = _FIELDS(block)
    stored, actual = _octal(checksum, "checksum"), _checksum(block)
    if stored != actual:
        raise ValueError(f"the header's checksum is {stored}, its bytes add up to {actual}")
    if magic not in (_USTAR, _GNU):
        raise ValueError("only ustar, pax and GNU tar headers are understood")
    name = _text(name, "name")
    # GNU tar keeps other things where ustar keeps the prefix.
    if magic == _USTAR and prefix[0] and (above := _text(prefix, "prefix")):
        name = above + b"/" + name
    return name, kind, _size(size), _is_executable(mode)


def _checksum(block: bytes) -> int:
    """The sum of a block's bytes, its checksum field taken as eight spaces.

    Half of Adler-32 is 1 plus the sum modulo 65,521 (RFC 1950, section 8.2), which 256 bytes cannot reach.
    """
    before, behind, end = adler32(block[:148]), adler32(block[156:334]), adler32(block[334:])
    return (before & 0xFFFF) + (behind & 0xFFFF) + (end & 0xFFFF) - 3 + 8 * 32


def pax_records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The records of a pax header: `length keyword=value newline`, the length counting all of it."""
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 7)
        digits = data[at:space]
        if space < 0 or not digits.isdigit() or digits.startswith(b"0"):
            raise ValueError("a pax record must begin with its length")
        end = at + int(digits)
        if end > len(data) or end <= space + 1 or data[end - 1 : end] != b"\n":
            raise ValueError(f"a pax record of {int(digits)} bytes does not end where its length says")
        keyword, equals, value = data[space + 1 : end - 1].partition(b"=")
        if not equals or not keyword:
            raise ValueError("a pax record must be keyword=value")
        yield keyword, value
        at = end


def pax_size(value: bytes) -> int:
    """The value of a pax `size` record, in bytes."""
    if not value.isdigit() or len(value) > _SIZE_DIGITS:
        raise ValueError("a pax size must be a decimal number of bytes")
    return int(value)


def file_header(name: bytes, size: int) -> bytes:
    """A ustar header of a file; the name has at most 100 bytes."""
    return _ustar_header(name, b"0", size, b"0000644")


def directory_header(name: bytes) -> bytes:
    """A ustar header of a directory; the name has at most 100 bytes and ends in a slash."""
    return _ustar_header(name, b"5", 0, b"0000755")


def _ustar_header(name: bytes, kind: bytes, size: int, mode: bytes) -> bytes:
    """Owner and group 0 without names, and the time 0."""
    nobody = b"0000000\0"
    start = name.ljust(100, b"\0") + mode + b"\0" + 2 * nobody + b"%011o\0" % size + b"%011o\0" % 0
    end = kind + bytes(100) + _USTAR + bytes(64) + 2 * nobody + bytes(167)
    checksum = sum(start) + 8 * 32 + sum(end)
    return start + b"%06o\0 " % checksum + end


def _text(field: bytes, what: str) -> bytes:
    text = field.rstrip(b"\0")
    if b"\0" in text:
        raise ValueError(f"the header's {what} goes on after a NUL")
    return text


def _octal(field: bytes, what: str) -> int:
    digits = field.rstrip(b"\0 ").lstrip(b" ")
    try:
        number = int(digits, 8) if digits.isdigit() else -1  # int() also takes signs, spaces and underscores
    except ValueError:
        number = -1
    if number < 0:
        raise ValueError(f"the header's {what} is not an octal number")
    return number


@lru_cache(maxsize=64)
def _is_executable(mode: bytes) -> bool:
    return bool(_octal(mode, "mode") & 0o100)


def _size(field: bytes) -> int:
    """A size: octal, or with the first bit set a two's complement number in base 256 (GNU tar)."""
    if field[0] < 0x80:
        return _octal(field, "size")
    size = int.from_bytes(field, "big", signed=True) if field[0] & 0x40 else int.from_bytes(field, "big") - (1 << 95)
    if size < 0:
        raise ValueError(f"the header's size is negative ({size})")
    return size
