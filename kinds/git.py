"""Git on a repository that came from outside, without believing anything that it says about itself.

A repository's own config can name commands that git runs (core.fsmonitor, core.sshCommand, diff.*.textconv,
filter.*, aliases, includes of other files, git-config(1)), its hooks are commands, and its attributes can
hide changes from a diff. So git never sees them: it works in an empty repository of our own, made for
this purpose, and finds the commits through GIT_OBJECT_DIRECTORY (git(1)). The reviewed repository gives
objects and nothing else. The options and variables below say the same once more, for what git could
still find elsewhere: the machine's config, a home directory, a network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from driver.errors import NO_ROOM, KindFailed, ProgramError
from driver.exits import ProgramExit, meaning
from driver.kind import ProgramEnd, Programs
from kinds.limited import limited

MIB: Final = 1024 * 1024
OUTPUT_BYTES: Final = 64 * MIB
"""What one git command may write. A larger change is no review's work."""

_COMMAND_SECONDS: Final = 120.0
# What a shell says of a command that it does not find (POSIX, sh, "Exit status").
_NOT_FOUND: Final = 127

_OPTIONS: Final = (
    "--no-pager",
    "--no-replace-objects",
    "--no-optional-locks",
    "-c core.attributesFile=/dev/null",
    # A commit graph in the object store could tell another tree than the commit does.
    "-c core.commitGraph=false",
    "-c core.fsmonitor=false",
    "-c core.hooksPath=/dev/null",
    # Names are printed as they are, control characters and quotes excepted.
    "-c core.quotePath=false",
    "-c credential.helper=",
    "-c protocol.allow=never",
)

_ENVIRONMENT: Final = {
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C.UTF-8",
}


@dataclass(frozen=True)
class Git:
    """Git commands that see the objects of one repository. Made by `quarantine`."""

    programs: Programs
    directory: Path
    objects: Path

    async def run(self, *arguments: str, stdout: Path | None = None) -> None:
        """Run one command; without `stdout`, what it prints goes to the log.

        Raises KindFailed (exit 2) when it fails, takes longer than 120 s or writes more than 64 MiB.
        """
        try:
            end = await self.programs.run(
                self._argv(arguments),
                cwd=self.directory,
                environment={
                    **_ENVIRONMENT,
                    "GIT_DIR": str(self.directory),
                    "GIT_OBJECT_DIRECTORY": str(self.objects),
                },
                stdout=stdout,
                step=f"git {arguments[0]}",
                timeout=_COMMAND_SECONDS,
            )
        except ProgramError as error:
            raise KindFailed(ProgramExit.UNHANDLED, f"git cannot be run: {error}") from error
        if end.exit != 0:
            written = await anyio.to_thread.run_sync(_size, stdout)
            raise KindFailed(ProgramExit.UNHANDLED, _failure(arguments[0], end, written))

    def _argv(self, arguments: Sequence[str]) -> list[str]:
        options = [word for option in _OPTIONS for word in option.split(" ", 1)]
        return limited(["git", *options, *arguments], OUTPUT_BYTES)


def quarantine(programs: Programs, repository: Path, directory: Path, *, sha256: bool) -> Git:
    """Make an empty repository at `directory` that borrows the objects of `repository`. Blocks.

    Raises KindFailed (exit 2) when `repository` is no checkout with a `.git` directory of its own.
    """
    objects = repository / ".git" / "objects"
    for path in (repository, repository / ".git", objects):
        if path.is_symlink() or not path.is_dir():
            raise KindFailed(ProgramExit.UNHANDLED, f"the reviewed repository has no directory {path.name}")
    (directory / "refs").mkdir(parents=True)
    (directory / "HEAD").write_text("ref: refs/heads/none\n", "ascii")
    (directory / "config").write_text(_config(sha256=sha256), "ascii")
    return Git(programs, directory, objects)


def _config(*, sha256: bool) -> str:
    version = 1 if sha256 else 0
    extensions = "[extensions]\n\tobjectFormat = sha256\n" if sha256 else ""
    return f"[core]\n\trepositoryFormatVersion = {version}\n\tbare = true\n{extensions}"


def _size(path: Path | None) -> int:
    return path.stat().st_size if path is not None and path.exists() else 0


def _failure(command: str, end: ProgramEnd, written: int) -> str:
    # Judged by the size: whether the limit is a signal or an error is the program's choice.
    if written >= OUTPUT_BYTES:
        return f"the change is too large: git {command} wrote more than {OUTPUT_BYTES // MIB} MiB"
    if end.reason == NO_ROOM:
        return NO_ROOM
    if end.exit == _NOT_FOUND:
        return "git is not installed"
    return f"git {command} failed: {end.reason or meaning(end.exit)} (its messages are in the log)"
