"""A place in a directory tree that is reached without following a link.

Each step opens one name relative to the directory before it (openat(2) with O_NOFOLLOW), so that nothing
else in the sandbox can bend the way. Trees may be deeper than descriptors are allowed: only the nearest
ones stay open, and the way back goes through `..`, checked to be the directory that was left.
"""

import errno
import os
import stat
from contextlib import suppress
from typing import Final

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_OPEN_DIRECTORIES: Final = 32
_OWNER: Final = stat.S_IRWXU

Name = str | bytes


class Descent:
    """The current directory of a walk. It owns `root` (a descriptor) and closes it.

    With `force` the owner of each directory on the way gets all permissions on it.
    """

    def __init__(self, root: int, *, force: bool = False, max_open: int = _OPEN_DIRECTORIES) -> None:
        self._open: list[int] = [root]
        self._closed: list[tuple[int, int]] = []
        self._force = force
        self._max_open = max_open

    @property
    def fd(self) -> int:
        """The descriptor of the current directory; valid until the next step."""
        return self._open[-1]

    @property
    def depth(self) -> int:
        """How many steps the current directory is below the root."""
        return len(self._closed) + len(self._open) - 1

    def enter(self, name: Name) -> None:
        """Go into a directory. Raises OSError: ENOTDIR or ELOOP where it is none."""
        opener = open_forced if self._force else open_directory
        self._open.append(opener(name, self.fd))
        if len(self._open) > self._max_open:
            farthest = self._open.pop(0)
            self._closed.append(_identity(farthest))
            os.close(farthest)

    def leave(self) -> None:
        """Go back to the directory above. Raises OSError (ESTALE) when the current one was moved meanwhile."""
        if len(self._open) == 1:
            above = os.open("..", DIRECTORY, dir_fd=self.fd)
            if _identity(above) != self._closed[-1]:
                os.close(above)
                raise OSError(errno.ESTALE, "a directory was moved while it was being walked")
            self._closed.pop()
            self._open.insert(0, above)
        os.close(self._open.pop())

    def close(self) -> None:
        """Close every descriptor. May be called again."""
        while self._open:
            os.close(self._open.pop())


def open_directory(name: Name, dir_fd: int) -> int:
    """Open a directory that is no link. Raises OSError."""
    return os.open(name, DIRECTORY, dir_fd=dir_fd)


def open_forced(name: Name, dir_fd: int | None = None) -> int:
    """Open a directory that is no link and give its owner all permissions, where that can be done."""
    try:
        fd = os.open(name, DIRECTORY, dir_fd=dir_fd)
    except PermissionError:
        fd = _open_unreadable(name, dir_fd)
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & _OWNER != _OWNER:
        with suppress(PermissionError):  # not the owner: what needs the permission says so
            os.fchmod(fd, mode | _OWNER)
    return fd


def _open_unreadable(name: Name, dir_fd: int | None) -> int:
    pinned = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        # fchmod(2) refuses an O_PATH descriptor; its entry in /proc leads to the same directory and no other.
        os.chmod(f"/proc/self/fd/{pinned}", _OWNER)
        return os.open(".", DIRECTORY, dir_fd=pinned)
    finally:
        os.close(pinned)


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
