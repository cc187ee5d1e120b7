"""The tree of an archive on disk while it is unpacked: staged, then moved into place.

Directories are entered one name at a time and files are made new, both without following a link, so
nothing that races the unpacking can lead a write elsewhere. Everything here blocks and raises OSError.
"""

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from driver.workspace.descent import DIRECTORY, Descent
from driver.workspace.names import Parts

STAGING: Final = b".incoming"

_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_MODE: Final = 0o444
_EXECUTABLE_MODE: Final = 0o555
_DIRECTORY_MODE: Final = 0o555
_OWN_MODE: Final = 0o700


class Incoming:
    """The staging tree below a workspace root that is empty but for mount points.

    A mount point cannot be replaced by a renamed directory: what the archive has for one is unpacked in
    place. Files and directories are made by the methods of the same names, parents first.
    """

    def __init__(self, root: Path, checkpoint: Callable[[], None]) -> None:
        self._checkpoint = checkpoint
        self._descent = Descent(os.open(root, DIRECTORY))
        self._path: list[bytes] = []
        self._entered: Parts = ()
        self._top: dict[bytes, bool] = {}
        self._file: int | None = None
        self._mode = _FILE_MODE
        self._as_given: set[int] = set()
        try:
            self._present = frozenset(map(os.fsencode, os.listdir(self._descent.fd)))
            os.mkdir(STAGING, _OWN_MODE, dir_fd=self._descent.fd)
        except BaseException:
            self._descent.close()
            raise

    def make_directory(self, parts: Parts) -> None:
        self._enter_above(parts)
        if len(parts) == 1:
            self._top[parts[0]] = True
        try:
            os.mkdir(parts[-1], _OWN_MODE, dir_fd=self._descent.fd)
        except FileExistsError:
            if parts[0] not in self._present:
                raise

    def add_file(self, parts: Parts, data: memoryview, *, executable: bool) -> None:
        """Make a file with this content."""
        fd = self._open_new(parts, executable)
        try:
            if data and (written := os.write(fd, data)) < len(data):
                _write(fd, data[written:])
            if self._mode not in self._as_given:
                self._set_file_mode(fd)
        finally:
            os.close(fd)

    def start_file(self, parts: Parts, *, executable: bool) -> None:
        """Make a file whose content comes with `write`, up to `end_file`."""
        self._file = self._open_new(parts, executable)

    def write(self, data: memoryview) -> None:
        """Append to the file that was started."""
        _write(self._started(), data)

    def end_file(self) -> None:
        self._set_file_mode(self._started())
        self._close_file()

    def _open_new(self, parts: Parts, executable: bool) -> int:
        self._enter_above(parts)
        if len(parts) == 1:
            self._top[parts[0]] = False
        self._mode = _EXECUTABLE_MODE if executable else _FILE_MODE
        return os.open(parts[-1], _NEW_FILE, self._mode, dir_fd=self._descent.fd)

    def _set_file_mode(self, fd: int) -> None:
        # The mode given to open(2) went through the umask, or the directory's default ACL; both stay as they are.
        if stat.S_IMODE(os.fstat(fd).st_mode) == self._mode:
            self._as_given.add(self._mode)
        else:
            os.fchmod(fd, self._mode)

    def publish(self, writable: Sequence[Parts]) -> None:
        """Move everything into place, make it read-only, and make the writable directories."""
        self._go([])
        staging = os.open(STAGING, DIRECTORY, dir_fd=self._descent.fd)
        try:
            for name in self._top.keys() - self._present:
                os.rename(name, name, src_dir_fd=staging, dst_dir_fd=self._descent.fd)
        finally:
            os.close(staging)
        os.rmdir(STAGING, dir_fd=self._descent.fd)
        # Only now: rename(2) of a directory to another parent needs write permission on the directory.
        for name, is_directory in self._top.items():
            if is_directory:
                self._freeze(name)
        for parts in writable:
            self._make_writable(parts)

    def close(self) -> None:
        """Let go of every descriptor. May be called again."""
        self._close_file()
        self._descent.close()

    def _started(self) -> int:
        assert self._file is not None, "data comes only between the start and the end of a file"
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            fd, self._file = self._file, None
            os.close(fd)

    def _enter_above(self, parts: Parts) -> None:
        """Make the directory above a path of the archive the current one."""
        above = parts[:-1]
        if above == self._entered and above:
            return
        self._go(above if parts[0] in self._present else (STAGING, *above))
        self._entered = above

    def _go(self, path: Sequence[bytes]) -> None:
        """Make `path` (below the root) the current directory, from wherever the last step was."""
        # It can be two thousand steps up and as many down, for each entry.
        self._checkpoint()
        common = 0
        for here, there in zip(self._path, path, strict=False):
            if here != there:
                break
            common += 1
        while len(self._path) > common:
            self._descent.leave()
            self._path.pop()
        for part in path[common:]:
            self._descent.enter(part)
            self._path.append(part)

    def _freeze(self, top: bytes) -> None:
        """Make a directory and all below it read-only."""
        self._go([top])
        levels = [self._freeze_here()]
        while levels:
            if levels[-1]:
                self._descent.enter(levels[-1].pop())
                levels.append(self._freeze_here())
            else:
                levels.pop()
                if levels:
                    self._descent.leave()

    def _freeze_here(self) -> list[str]:
        self._checkpoint()
        with os.scandir(self._descent.fd) as entries:
            directories = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        _set_mode(self._descent.fd, _DIRECTORY_MODE)
        return directories

    def _make_writable(self, parts: Parts) -> None:
        self._go(parts[:-1])
        # It may be a mount point, or made for another of them; what it is shows on entering it.
        with suppress(FileExistsError):
            os.mkdir(parts[-1], _OWN_MODE, dir_fd=self._descent.fd)
        self._go(parts)
        _set_mode(self._descent.fd, _OWN_MODE)


def _write(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _set_mode(fd: int, mode: int) -> None:
    try:
        os.fchmod(fd, mode)
    except PermissionError:
        # A mount point may belong to somebody else, who then decides what may be done in it.
        if os.fstat(fd).st_uid == os.geteuid():
            raise
