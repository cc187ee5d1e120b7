"""What stands in the workspace from one run to the next, and whether it still does.

A program that belongs to the same user can change inputs although their modes forbid it. Each such change
leaves its time in the tree (the ctime of inode(7), which nobody without privileges can set), so a tree in
which nothing is younger than its unpacking is as it was unpacked.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from driver.errors import WorkspaceError
from driver.layout import Layout
from driver.workspace.descent import DIRECTORY, Descent

_SHOWN_CHARACTERS: Final = 200


@dataclass
class Standing:
    """Which archive is completely unpacked in the workspace of this process; none at first.

    `digest` is the archive's, as in Runtime; `finished` the time of the last step of its unpacking, in
    nanoseconds of the file system's own clock; `inputs` are the names right below the workspace that it made.
    """

    digest: str | None = None
    finished: int = 0
    inputs: frozenset[str] = frozenset()

    def forget(self) -> None:
        """Nothing may be relied on any more: before anything is removed, and whenever something failed."""
        self.digest = None

    def note(self, digest: str, layout: Layout) -> None:
        """This archive has just been unpacked. Raises WorkspaceError."""
        try:
            # They are made last, after all inputs were made read-only.
            self.finished = max(os.stat(path, follow_symlinks=False).st_ctime_ns for path in layout.writable)
            self.inputs = frozenset(os.listdir(layout.root)) - _names(top_level(layout))
        except OSError as error:
            raise WorkspaceError(f"the unpacked workspace cannot be looked at: {error.strerror}") from error
        self.digest = digest


def top_level(layout: Layout) -> tuple[Path, ...]:
    """The directories right below the workspace that programs may write below; all else is input."""
    return tuple(path for path in layout.writable if path.parent == layout.root)


def changed(layout: Layout, standing: Standing, checkpoint: Callable[[], None] = lambda: None) -> str | None:
    """An input that is not as it was unpacked, as a path below the workspace, or None when there is none.

    Follows no link. Blocks; `checkpoint` is called for each directory and may raise to break off. What cannot
    be looked at counts as changed.
    """
    try:
        return _Look(layout, standing, checkpoint).run()
    except OSError as error:
        return f"{layout.root} ({error.strerror})"


def _shown(path: str) -> str:
    return ascii(path)[1:-1][:_SHOWN_CHARACTERS]


def _names(paths: tuple[Path, ...]) -> frozenset[str]:
    return frozenset(path.name for path in paths)


class _Look:
    """One walk over the inputs."""

    def __init__(self, layout: Layout, standing: Standing, checkpoint: Callable[[], None]) -> None:
        self._standing = standing
        self._checkpoint = checkpoint
        self._writable = _names(top_level(layout))
        self._descent = Descent(os.open(layout.root, DIRECTORY))
        self._way: list[str] = []

    def run(self) -> str | None:
        try:
            # By its names and not by its own time: a result is packed into a file that has a name there for a moment.
            missing = self._standing.inputs - set(os.listdir(self._descent.fd))
            return _shown(min(missing)) if missing else self._walk()
        finally:
            self._descent.close()

    def _walk(self) -> str | None:
        levels: list[list[str]] = []
        found = self._here(levels)
        while found is None and levels:
            if levels[-1]:
                self._way.append(levels[-1].pop())
                self._descent.enter(self._way[-1])
                found = self._here(levels)
            else:
                levels.pop()
                if levels:
                    self._way.pop()
                    self._descent.leave()
        return found

    def _here(self, levels: list[list[str]]) -> str | None:
        """Look at the entries of the current directory, and note those to go into."""
        self._checkpoint()
        directories: list[str] = []
        with os.scandir(self._descent.fd) as entries:
            for entry in entries:
                if not self._way and entry.name in self._writable:
                    if not entry.is_dir(follow_symlinks=False):
                        return entry.name
                    continue
                if entry.stat(follow_symlinks=False).st_ctime_ns > self._standing.finished:
                    return _shown("/".join((*self._way, entry.name)))
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.name)
        levels.append(directories)
        return None
