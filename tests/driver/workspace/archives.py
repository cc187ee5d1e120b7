"""Tar archives for tests, made byte by byte so that they can be wrong in exactly one place."""

import os
from collections.abc import Mapping
from pathlib import Path

END = bytes(1024)

FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where many small trees are made and removed quickly."""


def block(
    name: bytes,
    kind: bytes = b"0",
    *,
    size: int = 0,
    mode: bytes = b"0000644\0",
    size_field: bytes | None = None,
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
    checksum: bytes | None = None,
    link: bytes = b"",
) -> bytes:
    """One header block. The checksum is right unless it is given."""
    size_field = b"%011o\0" % size if size_field is None else size_field
    parts = [name.ljust(100, b"\0"), mode, b"0000000\0" * 2, size_field, b"%011o\0" % 0, b" " * 8, kind]
    parts += [link.ljust(100, b"\0"), magic, bytes(64), b"0000000\0" * 2, prefix.ljust(155, b"\0")]
    raw = b"".join(parts).ljust(512, b"\0")
    assert len(raw) == 512
    field = b"%06o\0 " % sum(raw) if checksum is None else checksum
    return raw[:148] + field + raw[156:]


def padded(data: bytes) -> bytes:
    """`data` filled up to whole blocks."""
    return data + bytes(-len(data) % 512)


def file(name: bytes, data: bytes = b"", *, mode: bytes = b"0000644\0") -> bytes:
    """A file's header and content."""
    return block(name, size=len(data), mode=mode) + padded(data)


def directory(name: bytes) -> bytes:
    """A directory's header."""
    return block(name, b"5")


def record(keyword: bytes, value: bytes) -> bytes:
    """One pax record with the length that it has."""
    rest = b" " + keyword + b"=" + value + b"\n"
    length = len(rest)
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


def pax(*records: bytes, kind: bytes = b"x") -> bytes:
    """A pax header with these records."""
    data = b"".join(records)
    return block(b"PaxHeaders/entry", kind, size=len(data)) + padded(data)


def gnu_name(name: bytes) -> bytes:
    """What GNU tar writes before an entry with a long name."""
    return block(b"././@LongLink", b"L", size=len(name) + 1, magic=b"ustar  \0") + padded(name + b"\0")


def tree(root: Path) -> dict[str, bytes | None]:
    """What is below a directory: content of files, None for directories."""
    found: dict[str, bytes | None] = {}
    for above, directories, files in os.walk(root):
        for name in directories:
            found[os.path.relpath(os.path.join(above, name), root)] = None
        for name in files:
            path = os.path.join(above, name)
            found[os.path.relpath(path, root)] = os.readlink(path).encode() if os.path.islink(path) else _read(path)
    return found


def with_writable(content: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    """What a workspace holds after `content` was unpacked into it."""
    return {**content, "work": None, ".sessions": None, "out": None, "work/home": None, "work/tmp": None}


def _read(path: str) -> bytes:
    with open(path, "rb") as opened:
        return opened.read()


def pad_name(length: int) -> bytes:
    """A name of so many bytes whose parts are short."""
    name = (b"p" * 63 + b"/") * (length // 64 + 1)
    return name[: length - 1] + b"q"
