"""Packing `out/` into the result archive (docs/kinds.md, "Archives going out").

The same content gives the same bytes: ustar, sorted, with fixed owner, mode and time. What may not go out
fails the packing and is named; nothing is left out. Everything here blocks.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from driver.errors import PackagingError
from driver.workspace.descent import DIRECTORY, open_directory
from driver.workspace.extract import sha256_field
from driver.workspace.names import printable
from driver.workspace.tar_fields import BLOCK_BYTES, ZERO_BLOCK, directory_header, file_header

_MIB: Final = 1024 * 1024
_READ_BYTES: Final = 256 * 1024

NAME_BYTES: Final = 100
FILE_BYTES: Final = 10 * _MIB
TOTAL_BYTES: Final = 50 * _MIB
ENTRIES: Final = 10_000

_ROOT: Final = b"out/"
# A fifo or a device would block an ordinary open.
_EXISTING_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True)
class Packed:
    """A written archive: its bytes, its SHA-256, and how many entries `out/` had."""

    size: int
    digest: bytes
    entries: int

    @property
    def digest_field(self) -> str:
        """The digest as HTTP writes it, `sha-256=:base64:` (RFC 9530)."""
        return sha256_field(self.digest)


def pack(out: Path, into: BinaryIO, *, added: Mapping[bytes, bytes] | None = None) -> Packed:
    """Write the archive of `out` to an open file.

    `added` are files by name that stand directly in `out/`, whatever is there under these names. A missing `out` is
    packed as an empty one. Raises PackagingError that names the entry and the bound.
    """
    return _Packing(into, added or {}).run(out)


class _Packing:
    """One archive being written. Names are below 100 bytes, so the tree is shallow enough to recurse."""

    def __init__(self, into: BinaryIO, added: Mapping[bytes, bytes]) -> None:
        self._into = into
        self._added = added
        self._sha256 = hashlib.sha256()
        self._size = 0
        self._entries = 0
        self._content = 0

    def run(self, out: Path) -> Packed:
        self._write(directory_header(_ROOT))
        try:
            fd = os.open(out, DIRECTORY)
        except FileNotFoundError:
            for name in sorted(self._added):
                self._count(_ROOT + name)
                self._add(name)
        except NotADirectoryError as error:
            raise _refused(_ROOT, "it must be a directory, and no link") from error
        except OSError as error:
            raise _refused(_ROOT, f"it cannot be read ({error.strerror})") from error
        else:
            self._directory(_ROOT, fd)
        self._write(2 * ZERO_BLOCK)
        return Packed(self._size, self._sha256.digest(), self._entries)

    def _directory(self, prefix: bytes, fd: int) -> None:
        """Pack what is in a directory, and close its descriptor."""
        try:
            for name, listed in self._list(prefix, fd):
                if listed is None:
                    self._add(name)
                elif stat.S_ISDIR(listed.st_mode):
                    self._write(directory_header(prefix + name))
                    self._directory(prefix + name, _enter(prefix + name, name, fd, listed))
                else:
                    self._file(prefix + name, name, fd, listed)
        finally:
            os.close(fd)

    def _list(self, prefix: bytes, fd: int) -> list[tuple[bytes, os.stat_result | None]]:
        """The entries of one directory, checked and sorted; a directory's name ends in a slash.

        What is added has no status, and stands in the place of what has its name.
        """
        added = self._added if prefix == _ROOT else {}
        entries: list[tuple[bytes, os.stat_result | None]] = []
        for name in added:
            self._count(prefix + name)
            entries.append((name, None))
        with _naming(prefix), os.scandir(fd) as scan:
            for entry in scan:
                if os.fsencode(entry.name) in added:
                    continue
                status = entry.stat(follow_symlinks=False)
                name = os.fsencode(entry.name) + (b"/" if stat.S_ISDIR(status.st_mode) else b"")
                self._count(prefix + name)
                _check(prefix + name, status)
                entries.append((name, status))
        return sorted(entries, key=lambda entry: entry[0])

    def _count(self, name: bytes) -> None:
        self._entries += 1
        if self._entries > ENTRIES:
            raise _refused(name, f"at most {ENTRIES:,} entries are packed")

    def _file(self, full_name: bytes, name: bytes, dir_fd: int, listed: os.stat_result) -> None:
        with _naming(full_name):
            fd = os.open(name, _EXISTING_FILE, dir_fd=dir_fd)
        try:
            status = os.fstat(fd)
            _check_same(full_name, status, listed)
            _check(full_name, status)
            self._content += status.st_size
            if self._content > TOTAL_BYTES:
                raise _refused(full_name, f"at most {TOTAL_BYTES:,} bytes are packed in all")
            self._write(file_header(full_name, status.st_size))
            self._copy(full_name, fd, status.st_size)
        finally:
            os.close(fd)

    def _add(self, name: bytes) -> None:
        content = self._added[name]
        self._write(file_header(_ROOT + name, len(content)))
        self._write(content)
        self._write(bytes(-len(content) % BLOCK_BYTES))

    def _copy(self, name: bytes, fd: int, size: int) -> None:
        left = size
        while left:
            with _naming(name):
                data = os.read(fd, min(left, _READ_BYTES))
            if not data:
                break
            self._write(data)
            left -= len(data)
        if left or os.fstat(fd).st_size != size:
            raise _refused(name, f"it had {size:,} bytes and changed its size while it was read")
        self._write(bytes(-size % BLOCK_BYTES))

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:  # an unbuffered file may take only a part
                left = left[self._into.write(left) :]
        except OSError as error:
            raise PackagingError(f"the result archive cannot be written: {error.strerror}") from error
        self._sha256.update(data)
        self._size += len(data)


def _enter(full_name: bytes, name: bytes, dir_fd: int, listed: os.stat_result) -> int:
    with _naming(full_name):
        # With the slash at its end a name is followed where it is a link, whatever open(2) is told.
        fd = open_directory(name.removesuffix(b"/"), dir_fd)
    try:
        _check_same(full_name, os.fstat(fd), listed)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_same(name: bytes, status: os.stat_result, listed: os.stat_result) -> None:
    if (status.st_dev, status.st_ino) != (listed.st_dev, listed.st_ino):
        raise _refused(name, "it was replaced while it was being packed")


def _check(name: bytes, status: os.stat_result) -> None:
    """Every rule that one entry alone can break."""
    if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        raise _refused(name, f"only files and directories are packed, this is {_kind(status.st_mode)}")
    if not (name.isascii() and name.decode("ascii").isprintable()):
        raise _refused(name, "a name must be printable ASCII")
    if len(name) > NAME_BYTES:
        raise _refused(name, f"a name has at most {NAME_BYTES} bytes, `out/` included; this one has {len(name)}")
    if stat.S_ISREG(status.st_mode) and status.st_size > FILE_BYTES:
        raise _refused(name, f"a file has at most {FILE_BYTES:,} bytes, this one has {status.st_size:,}")


@contextmanager
def _naming(name: bytes) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _refused(name, f"it cannot be read ({error.strerror})") from error


def _refused(name: bytes, rule: str) -> PackagingError:
    return PackagingError(f"entry {printable(name)}: {rule}")


_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
    stat.S_IFDIR: "a directory",
}


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "something else")
