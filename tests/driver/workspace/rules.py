"""The rules for archives coming in, stated once more and plainly: a whole archive in, a tree or a refusal out.

It shares no code and no way of working with the driver's reader: it has all bytes in hand, reads a field with a
pattern where the reader strips and compares, and knows paths as strings of bytes where the reader has a tree.
"""

import re
import unicodedata
from dataclasses import dataclass

Tree = dict[bytes, tuple[bytes, bool] | None]
"""What an archive becomes: content and execute bit of files, None for directories, by path."""


class Refused(Exception):
    """The archive breaks a rule."""


@dataclass(frozen=True)
class Entry:
    """One entry with what the headers before it say of it."""

    name: bytes
    is_directory: bool
    executable: bool
    data: bytes


NOT_INPUTS = (b"work", b".sessions", b"out", b".incoming")

OCTAL = re.compile(rb" *([0-7]+)[ \0]*")
TEXT = re.compile(rb"([^\0]*)\0*")
RECORD = re.compile(rb"([1-9][0-9]{0,5}) ")
OF_NO_MATTER = re.compile(
    rb"comment|[mac]time|[ug]id|[ug]name|LIBARCHIVE\.creationtime|SCHILY\.(dev|fflags|ino|nlink)"
    rb"|(SCHILY\.xattr|SCHILY\.acl|LIBARCHIVE\.xattr|RHT\.security)\..*",
    re.DOTALL,
)


def unpacked(archive: bytes, most: int) -> Tree:
    """The tree that an archive becomes where at most `most` bytes were advertised. Raises Refused."""
    check(len(archive) <= most, "more bytes than advertised")
    tree: Tree = {}
    named: set[bytes] = set()
    for number, entry in enumerate(entries(archive), 1):
        check(number <= 200_000, "too many entries")
        path = clean(entry.name)
        check(path.split(b"/")[0] not in NOT_INPUTS, "not an input")
        check(path not in named, "the same path twice")
        named.add(path)
        for above in directories_above(path):
            check(tree.setdefault(above, None) is None, "below a file")
        if entry.is_directory:
            check(not entry.data, "a directory with data")
            check(tree.get(path) is None, "a directory where a file is")
            if path:
                tree[path] = None
        else:
            check(not entry.name.endswith(b"/") and path != b"", "a file with the name of a directory")
            check(path not in tree, "a file where a directory is")
            tree[path] = entry.data, entry.executable
    return tree


def check(holds: object, rule: str) -> None:
    if not holds:
        raise Refused(rule)


def directories_above(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:depth]) for depth in range(1, len(parts))]


def clean(name: bytes) -> bytes:
    """A name without the parts that say nothing."""
    check(name, "no name")
    check(not name.startswith(b"/"), "an absolute path")
    text = name.decode("utf-8", "surrogateescape")
    check(not any(unicodedata.category(character) == "Cc" for character in text), "control characters")
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    check(b".." not in parts, "`..`")
    check(all(len(part) <= 255 for part in parts), "a long part")
    path = b"/".join(parts)
    check(len(path) <= 4096, "a long name")
    return path


def entries(archive: bytes) -> list[Entry]:
    """The entries in their order; the end marks are checked too."""
    found: list[Entry] = []
    at = 0
    name: bytes | None = None
    size: int | None = None
    awaited = False
    while archive[at : at + 512].strip(b"\0"):
        block = archive[at : at + 512]
        check(len(block) == 512, "an end inside a header")
        kind, field_name, field_size, executable = header(block)
        length = size if size is not None and kind not in (b"x", b"g", b"L") else field_size
        data = archive[at + 512 : at + 512 + length]
        at += 512 + length + -length % 512
        check(at <= len(archive), "a size that overruns")
        if kind in (b"x", b"g", b"L"):
            check(not awaited, "two extended headers before one entry")
            check(0 < length <= 65_536, "the length of an extended header")
            if kind == b"L":
                name = data.removesuffix(b"\0")
            else:
                records = pax(data, own=(b"path", b"size") if kind == b"x" else ())
                name = records.get(b"path")
                size = number(records[b"size"]) if b"size" in records else None
            awaited = kind != b"g"
        else:
            check(kind in (b"0", b"\0", b"5"), "neither a file nor a directory")
            found.append(Entry(field_name if name is None else name, kind == b"5", executable, data))
            name, size, awaited = None, None, False
    check(not awaited, "an extended header without an entry")
    check(len(archive) - at >= 1024 and len(archive) % 512 == 0, "no two end marks")
    check(not archive[at:].strip(b"\0"), "data after the end marks")
    return found


def header(block: bytes) -> tuple[bytes, bytes, int, bool]:
    """Kind, name, size and execute bit of a header block."""
    check(octal(block[148:156]) == sum(block[:148]) + 8 * 0x20 + sum(block[156:]), "a bad checksum")
    is_ustar, is_gnu = block[257:265] == b"ustar\x0000", block[257:265] == b"ustar  \0"
    check(is_ustar or is_gnu, "another format")
    name = text(block[:100])
    if is_ustar and block[345] and text(block[345:500]):
        name = text(block[345:500]) + b"/" + name
    size = block[124:136]
    length = base256(size) if size[0] & 0x80 else octal(size)
    return block[156:157], name, length, octal(block[100:108]) // 0o100 % 2 == 1


def octal(field: bytes) -> int:
    match = OCTAL.fullmatch(field)
    if match is None:
        raise Refused("no octal number")
    return int(match[1], 8)


def base256(field: bytes) -> int:
    """95 bits in two's complement; the topmost bit only marks the form."""
    value = int.from_bytes(field, "big") & ((1 << 95) - 1)
    check(value < 1 << 94, "a negative size")
    return value


def text(field: bytes) -> bytes:
    match = TEXT.fullmatch(field)
    if match is None:
        raise Refused("something after a NUL")
    return match[1]


def number(value: bytes) -> int:
    check(re.fullmatch(rb"[0-9]{1,19}", value), "no decimal number")
    return int(value)


def pax(data: bytes, own: tuple[bytes, ...]) -> dict[bytes, bytes]:
    """The records of a pax header that matter; only those of `own` may."""
    found: dict[bytes, bytes] = {}
    while data:
        match = RECORD.match(data)
        if match is None:
            raise Refused("a record without a length")
        length = int(match[1])
        body, data = data[match.end() : length], data[length:]
        check(match.end() + len(body) == length and body.endswith(b"\n"), "a record with a wrong length")
        keyword, equals, value = body[:-1].partition(b"=")
        check(keyword and equals, "no keyword=value")
        check(keyword not in found, "a record twice")
        says_bytes = keyword == b"hdrcharset" and value in (b"BINARY", b"ISO-IR 10646 2000 UTF-8")
        check(keyword in own or says_bytes or OF_NO_MATTER.fullmatch(keyword), "a record that is not known")
        found[keyword] = value
    return found
