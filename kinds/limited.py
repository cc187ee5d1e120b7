"""A bound on the size of each file that a command writes."""

from collections.abc import Sequence
from typing import Final

# `ulimit -f` counts blocks of 512 bytes (POSIX, sh).
_BLOCK_BYTES: Final = 512

# A lower limit that is in force cannot be raised, and need not be.
_LIMITED: Final = 'ulimit -f "$1" 2>/dev/null; shift; exec "$@"'


def limited(argv: Sequence[str], most_bytes: int) -> list[str]:
    """The command that runs `argv` so that no file it writes grows beyond `most_bytes`.

    The write that would do so fails, or ends the program by SIGXFSZ (setrlimit(2)). What is not found
    ends with 127, as in a shell.
    """
    return ["/bin/sh", "-c", _LIMITED, "sh", str(most_bytes // _BLOCK_BYTES), *argv]
