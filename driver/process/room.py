"""Whether the disks that programs write to have any room left (statvfs(3))."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

LEAST_BYTES: Final = 64 * 1024
"""A disk with less than this is full: a program that failed may have removed the file that did not fit."""


def has_room(directories: Iterable[Path]) -> bool:
    """Whether each disk below `directories` takes another file. One that cannot be asked is taken to."""
    return all(map(_has_room, directories))


def _has_room(directory: Path) -> bool:
    try:
        disk = os.statvfs(directory)
    except OSError:
        return True
    # A file system that makes its inodes as it needs them tells of none at all.
    inodes_left = disk.f_favail > 0 or disk.f_files == 0
    return inodes_left and disk.f_bavail * disk.f_frsize >= LEAST_BYTES
