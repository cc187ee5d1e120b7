"""Makes the file that takes a program's output, without going through a link."""

import os
from pathlib import Path
from typing import Final

from driver.errors import ProgramError

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def create_below(root: Path, path: Path) -> int:
    """Create `path`, which lies below `root`, for its owner only, and return a descriptor to write to.

    Each directory between the two is opened by itself and may be no link: an earlier program could have put
    one there. Raises ProgramError, also if the file is there already.
    """
    try:
        parts = path.relative_to(root).parts
    except ValueError:
        raise ProgramError(f"output file {path} is not below {root}") from None
    if not parts or ".." in parts:
        raise ProgramError(f"output file {path} is not a name below {root}")
    try:
        return _create(root, parts)
    except OSError as error:
        raise ProgramError(f"output file {path} cannot be made: {error.strerror}") from error


def _create(root: Path, parts: tuple[str, ...]) -> int:
    at = os.open(root, _DIRECTORY)
    try:
        for part in parts[:-1]:
            below = os.open(part, _DIRECTORY, dir_fd=at)
            os.close(at)
            at = below
        return os.open(parts[-1], _NEW, 0o600, dir_fd=at)
    finally:
        os.close(at)
