"""Opening what is in the workspace, and nothing else.

A path is walked part by part from a descriptor of the workspace, each part opened with O_NOFOLLOW from the
directory before it (openat(2)). So a link is refused wherever it stands, and one that is put in place
between a check and an open is too: there is no moment between them. Only regular files are read, and
O_NONBLOCK keeps a fifo from holding the program.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from kinds.programs.errors import ToolRefused
from kinds.programs.text import one_line

_PATH_CHARACTERS: Final = 4096
_PARTS: Final = 200
_SHOWN_CHARACTERS: Final = 200
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True)
class Found:
    """One entry of a directory. `kind` is `file`, `directory` or `other`; links and devices are `other`."""

    name: str
    kind: str
    size: int


class Confined:
    """Read-only access below one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.absolute = os.path.abspath(root)

    def relative(self, path: str) -> str:
        """The path as the workspace names it: parts joined by `/`, empty for the workspace itself.

        Raises ToolRefused for one that cannot be in the workspace.
        """
        if len(path) > _PATH_CHARACTERS or "\0" in path:
            raise ToolRefused("that is no path")
        if path == self.absolute or path.startswith(self.absolute + "/"):
            path = path[len(self.absolute) :].lstrip("/")
        if path.startswith("/"):
            raise ToolRefused(f"{_shown(path)} is outside the workspace; paths are relative to it")
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise ToolRefused(f"{_shown(path)} is refused: `..` is not followed")
        if len(parts) > _PARTS:
            raise ToolRefused("that path has too many parts")
        return "/".join(parts)

    @contextmanager
    def file(self, path: str) -> Iterator[BinaryIO]:
        """An open regular file. Raises ToolRefused."""
        descriptor = self._open(path, os.O_RDONLY)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ToolRefused(f"{_shown(path)} is not a regular file")
            with open(descriptor, "rb", closefd=False) as file:
                yield file
        except OSError as error:
            raise ToolRefused(f"{_shown(path)} cannot be read: {error.strerror}") from error
        finally:
            os.close(descriptor)

    def entries(self, path: str) -> list[Found]:
        """What is in a directory, sorted by name. Raises ToolRefused."""
        descriptor = self._open(path, os.O_DIRECTORY)
        try:
            with os.scandir(descriptor) as found:
                return sorted((_found(entry) for entry in found), key=lambda one: one.name)
        except OSError as error:
            raise ToolRefused(f"{_shown(path)} cannot be listed: {error.strerror}") from error
        finally:
            os.close(descriptor)

    def _open(self, path: str, flags: int) -> int:
        relative = self.relative(path)
        parts = relative.split("/") if relative else []
        try:
            descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ToolRefused(f"the workspace cannot be opened: {error.strerror}") from error
        for place, part in enumerate(parts, 1):
            try:
                below = os.open(part, _OPEN | (flags if place == len(parts) else os.O_DIRECTORY), dir_fd=descriptor)
            except (OSError, UnicodeEncodeError) as error:
                raise ToolRefused(_reason(path, part, descriptor, error)) from error
            finally:
                os.close(descriptor)
            descriptor = below
        return descriptor


def _found(entry: os.DirEntry[str]) -> Found:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return Found(entry.name, "other", 0)
    if stat.S_ISDIR(status.st_mode):
        return Found(entry.name, "directory", 0)
    return Found(entry.name, "file" if stat.S_ISREG(status.st_mode) else "other", status.st_size)


def _reason(path: str, part: str, directory: int, error: Exception) -> str:
    if _is_link(part, directory):
        return f"{_shown(path)} is refused: {_shown(part)} is a link, and links are not followed"
    detail = error.strerror if isinstance(error, OSError) else "no valid name"
    return f"{_shown(path)} cannot be opened: {detail}"


def _is_link(part: str, directory: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(part, dir_fd=directory, follow_symlinks=False).st_mode)
    except (OSError, UnicodeEncodeError):
        return False


def _shown(path: str) -> str:
    return one_line(path if path.isprintable() else ascii(path)[1:-1], _SHOWN_CHARACTERS)
