"""Puts one file among the inputs of a workspace, for a program that begins after it.

The inputs are read-only by their modes, so each directory on the way is made writable for the moment and gets its
mode back. No link is followed: each part is opened by itself from the directory above it (openat(2), O_NOFOLLOW).
"""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_MODE: Final = 0o444
_DIRECTORY_MODE: Final = 0o555
# A name may have 255 bytes, so the temporary one is not made from it.
_TEMPORARY: Final = ".staged.partial"


def stage(root: Path, location: str, data: bytes) -> None:
    """Put `data` at a checked location below `root`, complete or not at all, in place of a file or link there.

    Missing directories are made. Blocks. Raises OSError: also where a link or a file is on the way, or a
    directory in its place.
    """
    *above, name = location.split("/")
    with ExitStack() as opened:
        at = opened.enter_context(_closing(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)))
        for part in above:
            at = opened.enter_context(_closing(_enter(at, part)))
        with _writable(at):
            _replace(at, name, data)


def _enter(at: int, part: str) -> int:
    with suppress(FileNotFoundError):
        return os.open(part, _DIRECTORY, dir_fd=at)
    with _writable(at):
        os.mkdir(part, _DIRECTORY_MODE, dir_fd=at)
    return os.open(part, _DIRECTORY, dir_fd=at)


def _replace(at: int, name: str, data: bytes) -> None:
    with suppress(FileNotFoundError):
        os.unlink(_TEMPORARY, dir_fd=at)
    with _closing(os.open(_TEMPORARY, _NEW, _FILE_MODE, dir_fd=at)) as file:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(file, left) :]
            os.rename(_TEMPORARY, name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            os.unlink(_TEMPORARY, dir_fd=at)
            raise


@contextmanager
def _writable(fd: int) -> Iterator[None]:
    """The directory lets its owner write while in the block."""
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & stat.S_IWUSR:
        yield
        return
    os.fchmod(fd, mode | stat.S_IWUSR)
    try:
        yield
    finally:
        os.fchmod(fd, mode)


@contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)
