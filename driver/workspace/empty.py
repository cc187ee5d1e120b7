"""Emptying the workspace: everything below it goes, whatever a program left there."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from driver.errors import WorkspaceError
from driver.workspace.descent import Descent, open_forced
from driver.workspace.names import printable

_PASSES: Final = 16
"""How often the tree is walked again because something appeared in it meanwhile."""

_GONE: Final = frozenset({errno.ENOENT})
_CHANGED: Final = frozenset({errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ESTALE})
_FILLED: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})


def empty(root: Path, checkpoint: Callable[[], None] = lambda: None) -> None:
    """Remove everything below `root`, which is made if it is missing.

    Follows no link. Mount points stay, emptied, and so does what leads to them. Blocks; `checkpoint` is
    called for each directory and may raise to break off. Raises WorkspaceError when something cannot be
    removed, or when the tree goes on filling.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        for _ in range(_PASSES):
            if _Pass(open_forced(os.fspath(root)), checkpoint).run():
                return
    except OSError as error:
        where = f" (at {printable(os.fsencode(error.filename))})" if error.filename else ""
        raise WorkspaceError(f"the workspace {root} cannot be emptied: {error.strerror}{where}") from error
    raise WorkspaceError(f"the workspace {root} was filled again during each of {_PASSES} passes of emptying it")


class _Level:
    """A directory on the way down: its name, what is still to be done in it, and whether it has to stay."""

    def __init__(self, name: str, directories: list[str]) -> None:
        self.name = name
        self.directories = directories
        self.stays = False


class _Pass:
    """One walk over the tree. `run` is true when it found nothing to remove."""

    def __init__(self, root: int, checkpoint: Callable[[], None]) -> None:
        self._descent = Descent(root, force=True)
        self._checkpoint = checkpoint
        self._levels: list[_Level] = []
        self._clean = True

    def run(self) -> bool:
        try:
            self._begin("")
            while self._levels:
                if self._levels[-1].directories:
                    self._down(self._levels[-1].directories.pop())
                else:
                    self._up(self._levels.pop())
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            self._clean = False
        finally:
            self._descent.close()
        return self._clean

    def _begin(self, name: str) -> None:
        """Remove what is no directory from the current one, and note what is."""
        self._checkpoint()
        level = _Level(name, [])
        self._levels.append(level)
        with os.scandir(self._descent.fd) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    level.directories.append(entry.name)
                elif not self._remove(os.unlink, entry.name):
                    level.stays = True
                    _truncate(entry.name, self._descent.fd)

    def _down(self, name: str) -> None:
        try:
            self._descent.enter(name)
        except OSError as error:
            if error.errno not in _GONE | _CHANGED:
                raise
            self._clean = False
        else:
            self._begin(name)

    def _up(self, level: _Level) -> None:
        if not self._levels:
            return
        self._descent.leave()
        try:
            removed = self._remove(os.rmdir, level.name)
        except OSError as error:
            if error.errno not in _FILLED:
                raise
            removed = False
            # A directory that leads to a mount point is not empty either, and is as it should be.
            if not level.stays:
                self._clean = False
                return
        if not removed:
            self._levels[-1].stays = True

    def _remove(self, call: Callable[..., None], name: str) -> bool:
        """Remove a name from the current directory; false when it is a mount point."""
        try:
            call(name, dir_fd=self._descent.fd)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            if error.errno not in _GONE | _CHANGED:
                raise
        self._clean = False
        return True


def _truncate(name: str, dir_fd: int) -> None:
    """Empty a file that something is mounted on. What is not a regular file holds nothing."""
    if not stat.S_ISREG(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
        return
    fd = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)
