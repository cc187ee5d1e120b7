"""Unpacking an incoming archive below the workspace root.

Everything here blocks and is called in a worker thread, one call at a time.
"""

import os
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from driver.errors import ArchiveRefused, WorkspaceError
from driver.layout import Layout
from driver.workspace.incoming import STAGING, Incoming
from driver.workspace.names import Parts, printable
from driver.workspace.tar_reader import Directory, File, FileData, FileStart, TarLimits, TarReader


def sha256_field(digest: bytes) -> str:
    """A SHA-256 digest as HTTP writes it, `sha-256=:base64:` (RFC 9530)."""
    return f"sha-256=:{b64encode(digest).decode()}:"


class Extractor:
    """Unpacks one archive: `feed` each piece, then `publish`; `close` in any case.

    Made on a workspace root that is empty but for mount points. Nothing is in its place before `publish`.
    Raises ArchiveRefused for a rule, WorkspaceError for the disk; the workspace has to be emptied then.
    """

    def __init__(self, layout: Layout, limits: TarLimits, checkpoint: Callable[[], None] = lambda: None) -> None:
        self._root = layout.root
        self._writable = [_parts(layout, path) for path in layout.writable]
        self._reserved: Final = frozenset({STAGING, *(parts[0] for parts in self._writable)})
        self._reader = TarReader(limits)
        self._current: Parts = ()
        self.bytes = 0
        self.files = 0
        with self._naming():
            self._incoming = Incoming(layout.root, checkpoint)

    def feed(self, chunk: bytes | memoryview) -> None:
        """Take the next bytes of the archive."""
        self.bytes += len(chunk)
        with self._naming():
            for event in self._reader.feed(chunk):
                if isinstance(event, File):
                    self._enter(event.parts)
                    self._incoming.add_file(event.parts, event.data, executable=event.executable)
                    self.files += 1
                elif isinstance(event, FileData):
                    self._incoming.write(event.data)
                elif isinstance(event, FileStart):
                    self._enter(event.parts)
                    self._incoming.start_file(event.parts, executable=event.executable)
                elif isinstance(event, Directory):
                    self._enter(event.parts)
                    self._incoming.make_directory(event.parts)
                else:
                    self._incoming.end_file()
                    self.files += 1

    def publish(self) -> None:
        """Check that the archive is complete and move its tree into place, read-only.

        The writable directories are made next to it.
        """
        self._reader.close()
        self._current = ()
        with self._naming():
            self._incoming.publish(self._writable)

    def close(self) -> None:
        """Let go of every descriptor. May be called again."""
        self._incoming.close()

    def _enter(self, parts: Parts) -> None:
        self._current = parts
        if parts[0] in self._reserved:
            raise ArchiveRefused(
                f"entry {printable(b'/'.join(parts))}: an archive holds inputs only, and {printable(parts[0])} is none"
            )

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = printable(b"/".join(self._current)) if self._current else str(self._root)
            raise WorkspaceError(f"unpacking {where}: {error.strerror}") from error


def _parts(layout: Layout, path: Path) -> Parts:
    return tuple(map(os.fsencode, path.relative_to(layout.root).parts))
