"""What starts a child: its pipes, its session, and the sentence for each way of not starting."""

import errno
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from driver.process.line import Line

_REASONS: Final = {
    errno.ENOENT: "it, or the interpreter that it names, was not found",
    errno.EACCES: "it is not executable, or a directory above it may not be searched",
    errno.ENOEXEC: "it is neither a binary for this machine nor a script that names its interpreter",
    errno.E2BIG: "its arguments and environment are longer than execve(2) allows; hand them over in a file",
    errno.EAGAIN: "the limit on processes is reached",
    errno.ENOMEM: "there is no memory for another process",
    errno.EMFILE: "the driver's limit on open files is reached",
}


def pipe(on_failure: ExitStack, writing_ends: ExitStack) -> tuple[int, int]:
    """A pipe for output, whose reading end does not block. Who closes which end, and when, is in the stacks."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    on_failure.callback(os.close, reader)
    writing_ends.callback(os.close, writer)
    os.set_blocking(reader, False)
    return reader, writer


def popen_in_session(
    argv: Sequence[str],
    line: Line | None,
    *,
    cwd: Path,
    environment: Mapping[str, str],
    stdout: int | None,
    stderr: int,
) -> "subprocess.Popen[bytes]":
    """Start `argv`, by the keeper at the end of `line` if there is one. Raises OSError and ValueError."""
    return subprocess.Popen(
        list(argv) if line is None else line.command(argv),
        cwd=cwd,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        close_fds=True,
        pass_fds=() if line is None else line.passed,
        start_new_session=True,
    )


def why_not_started(name: str, cwd: Path, error: Exception) -> str:
    """One sentence for an error of the start of the program `name` in `cwd`."""
    start = f"program {name!r} cannot be started"
    if not isinstance(error, OSError):
        return f"{start}: {error}"
    if not (cwd.is_dir() and os.access(cwd, os.X_OK)):
        return f"{start}: its directory {cwd} cannot be entered"
    return f"{start}: {_REASONS.get(error.errno or 0, error.strerror)}"
