"""How much of the disk lies below some directories, also where whoever wrote it does not want that to be seen."""

import os
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

INODE_BYTES: Final = 1024
"""What a file costs at least: without content it still takes an inode and a name, in memory on a tmpfs."""

# stat(2): st_blocks counts units of this size, whatever the file system's own block is.
_BLOCK_BYTES: Final = 512

# A path of so many characters is within PATH_MAX (4,096 bytes, limits.h), however many bytes each of them has.
_PATH_CHARACTERS: Final = 1000

_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class DiskUse:
    """Bytes on disk; at least that many if not everything could be seen in time."""

    bytes: int
    complete: bool


def disk_use(roots: Iterable[Path], *, until: float, enough: int) -> DiskUse:
    """Bytes on disk below `roots`, each file once and with an inode's cost at least, following no link.

    Gives up at `until` (of `time.monotonic`) and once more than `enough` were seen. What programs remove meanwhile is
    left out. A directory that shuts out its owner, who is this process, is opened again (mode 0700).
    """
    total, complete = 0, True
    seen: set[tuple[int, int]] = set()
    directories = [str(root) for root in roots]
    while directories and total <= enough:
        if time.monotonic() >= until:
            return DiskUse(total, complete=False)
        path = directories.pop()
        try:
            directory = _open_in_spite(path)
        except FileNotFoundError:
            continue
        except OSError:
            complete = False
            continue
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    total += _bytes_of(entry, path, seen, directories)
        except OSError:
            complete = False
        finally:
            os.close(directory)
    return DiskUse(total, complete)


def outermost(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The paths that are not below another of them."""
    every = sorted(set(paths))
    return tuple(path for path in every if not any(other in path.parents for other in every))


def _bytes_of(entry: "os.DirEntry[str]", path: str, seen: set[tuple[int, int]], directories: list[str]) -> int:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return 0
    if stat.S_ISDIR(status.st_mode):
        directories.append(f"{path}/{entry.name}")
    elif status.st_nlink > 1:
        if (status.st_dev, status.st_ino) in seen:
            return 0
        seen.add((status.st_dev, status.st_ino))
    return max(status.st_blocks * _BLOCK_BYTES, INODE_BYTES)


def _open_in_spite(path: str) -> int:
    try:
        return _open(path)
    except PermissionError:
        parent = _open(os.path.dirname(path))
        try:
            # Should a link be there by now, nothing is gained: a program may change the mode of whatever it leads to.
            os.chmod(os.path.basename(path), stat.S_IRWXU, dir_fd=parent)
        finally:
            os.close(parent)
        return _open(path)


def _open(path: str) -> int:
    """Open a directory, of whatever depth: step by step where its path is longer than the kernel takes."""
    if len(path) <= _PATH_CHARACTERS:
        return os.open(path, _FLAGS)
    within: int | None = None
    while path:
        # A name has 255 characters at most, so there is always a place to cut.
        cut = len(path) if len(path) <= _PATH_CHARACTERS else path.rindex("/", 1, _PATH_CHARACTERS)
        try:
            below = os.open(path[:cut], _FLAGS, dir_fd=within)
        finally:
            if within is not None:
                os.close(within)
        within, path = below, path[cut + 1 :]
    assert within is not None
    return within
