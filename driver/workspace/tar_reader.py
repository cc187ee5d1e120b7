"""A strict reader of incoming tar archives that does no I/O (docs/kinds.md, "Archives coming in").

Bytes are pushed in, events come out; every rule is checked before the event that it is about. Only regular
files and directories exist for whoever reads the events.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from driver.errors import ArchiveRefused
from driver.workspace import tar_extended
from driver.workspace.names import Parts, Tree, printable, split_name
from driver.workspace.tar_fields import BLOCK_BYTES, ZERO_BLOCK, Header, parse_header, raw_name

ENTRIES: Final = 200_000
UNNAMED_DIRECTORIES: Final = 200_000


@dataclass(frozen=True)
class TarLimits:
    """The bounds of one archive: its bytes in all, its entries, and directories that have no entry themselves."""

    bytes: int
    entries: int = ENTRIES
    unnamed_directories: int = UNNAMED_DIRECTORIES


class Directory(NamedTuple):
    """A directory to make. It comes once, before anything in it, also where no entry names it."""

    parts: Parts


class File(NamedTuple):
    """A file to make, all of which was in the bytes that were fed; `data` is valid as that of FileData is."""

    parts: Parts
    executable: bool
    data: memoryview


class FileStart(NamedTuple):
    """A file to make that goes on in the next bytes; `size` bytes of FileData follow, then FileEnd."""

    parts: Parts
    size: int
    executable: bool


class FileData(NamedTuple):
    """Some bytes of the file, valid until the next event is asked for."""

    data: memoryview


class FileEnd(NamedTuple):
    """The file is complete."""


_File = tuple[Parts, int, bool]
Event = Directory | File | FileStart | FileData | FileEnd

_DIRECTORY: Final = b"5"
_KINDS: Final = (b"0", _DIRECTORY, b"\0")
_REFUSED_KINDS: Final = {
    b"1": "hard links",
    b"2": "symbolic links",
    b"3": "character devices",
    b"4": "block devices",
    b"6": "fifos",
    b"K": "long names of links",
    b"S": "sparse files",
}


class TarReader:
    """Reads one archive. After it raised, it is of no use any more."""

    def __init__(self, limits: TarLimits) -> None:
        self._limits = limits
        self._tree = Tree(self._grow)
        self._grown: Parts = ()
        self._known = 0
        self._extended = tar_extended.Extended()
        self._name = b""
        self._fed = 0
        self._entries = 0
        self._unnamed = 0
        self._block = bytearray()
        self._end_marks = 0
        self._data_left = 0
        self._padding_left = 0

    def feed(self, chunk: bytes | memoryview) -> Iterator[Event]:
        """The events in the next bytes of the archive; take all of them before feeding again.

        Raises ArchiveRefused, which names the entry and the rule.
        """
        self._fed += len(chunk)
        if self._fed > self._limits.bytes:
            raise ArchiveRefused(f"the archive has more than the advertised {self._limits.bytes:,} bytes")
        view = memoryview(chunk)
        at, end = 0, len(view)
        while at < end:
            if self._data_left:
                stop = min(at + self._data_left, end)
                self._data_left -= stop - at
                yield FileData(view[at:stop])
                at = stop
                if not self._data_left:
                    yield FileEnd()
            elif self._padding_left:
                skipped = min(self._padding_left, end - at)
                self._padding_left -= skipped
                at += skipped
            elif self._extended.left:
                with self._refusing():
                    at = end - len(self._extended.take(view[at:]))
            else:
                stop = min(at + BLOCK_BYTES - len(self._block), end)
                block = bytes(view[at:stop])
                at = stop
                if len(block) < BLOCK_BYTES and not (block := self._completed(block)):
                    return
                file = self._take_block(block, end - at)
                if self._grown:
                    yield from self._take_grown()
                if file is None:
                    continue
                parts, size, executable = file
                stop, padding = at + size, -size % BLOCK_BYTES
                if stop <= end:
                    yield File(parts, executable, view[at:stop])
                    at = stop + padding
                    if at > end:
                        self._padding_left, at = at - end, end
                else:
                    self._data_left, self._padding_left = size, padding
                    yield FileStart(parts, size, executable)

    def close(self) -> None:
        """Say that the archive has ended. Raises ArchiveRefused when it is not complete."""
        with self._refusing():
            if left := self._data_left or self._extended.left:
                raise ValueError(f"the archive ends {left:,} bytes before this entry does")
            if self._block or self._padding_left:
                raise ValueError("the archive ends inside the block after this entry")
            if self._end_marks < 2:
                raise ValueError("the archive ends after this entry, without its two end marks")

    def _completed(self, part: bytes) -> bytes:
        """Keep this part of a block; the block, once that is all of it."""
        self._block += part
        if len(self._block) < BLOCK_BYTES:
            return b""
        block = bytes(self._block)
        self._block.clear()
        return block

    def _take_block(self, block: bytes, unread: int) -> _File | None:
        """What a block of headers says; the file that it announces, if it is one."""
        if block == ZERO_BLOCK:
            self._end_mark()
            return None
        self._name = b""
        try:
            if self._end_marks:
                raise ValueError("there is data after an end mark")
            header = parse_header(block)
            if header[1] in tar_extended.KINDS:
                self._name, kind, size, _ = header
                self._extended.begin(kind, size)
                return None
            return self._entry(header, self._limits.bytes - self._fed + unread)
        except ValueError as error:
            raise self._refused(error, self._name or raw_name(block)) from None

    def _take_grown(self) -> Iterator[Directory]:
        grown, self._grown = self._grown, ()
        return (Directory(grown[:depth]) for depth in range(self._known + 1, len(grown) + 1))

    def _end_mark(self) -> None:
        self._end_marks += 1
        if self._extended.pending:
            with self._refusing():
                raise ValueError("an extended header is followed by no entry")

    def _entry(self, header: Header, bytes_left: int) -> _File | None:
        """Check an entry against every rule; None stands for a directory."""
        name, kind, size, executable = header
        if self._extended.pending:
            name, size = self._extended.apply(name, size)
        self._name = name
        self._entries += 1
        if self._entries > self._limits.entries:
            raise ValueError(f"an archive has at most {self._limits.entries:,} entries")
        if kind not in _KINDS:
            what = _REFUSED_KINDS.get(kind, f"entries of type {printable(kind)}")
            raise ValueError(f"{what} are refused")
        if size > bytes_left:
            raise ValueError(f"its size is {size:,} bytes, and only {bytes_left:,} are left of the advertised ones")
        parts = split_name(name)
        if kind == _DIRECTORY:
            if size:
                raise ValueError(f"a directory has no data, this one says {size:,} bytes")
            self._tree.add_directory(parts)
            self._unnamed -= 1 if parts else 0
        else:
            if not parts or name.endswith(b"/"):
                raise ValueError("a file cannot have the name of a directory")
            self._tree.add_file(parts)
        if self._unnamed > self._limits.unnamed_directories:
            most = self._limits.unnamed_directories
            raise ValueError(f"at most {most:,} directories may have no entry of their own")
        return None if kind == _DIRECTORY else (parts, size, executable)

    def _grow(self, parts: Parts, known: int) -> None:
        self._unnamed += len(parts) - known
        self._grown, self._known = parts, known

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise self._refused(error, self._name) from None

    @staticmethod
    def _refused(error: ValueError, name: bytes) -> ArchiveRefused:
        return ArchiveRefused(f"entry {printable(name)}: {error}")
