"""What a kind is, and what it is given.

A kind turns one held run into an outcome. By the type of what it is given it can neither renew nor end the
run: the lease keeper and the loop do that. docs/kinds.md tells how to add one.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Protocol

from driver.exits import ProgramExit
from driver.gateway.wire import Context, Run
from driver.layout import Layout
from driver.log import Log


class StopReason(Enum):
    """Why the work of a run was stopped while its claim still holds."""

    DEADLINE = "deadline"
    STOPPING = "stopping"

    @property
    def exit(self) -> int:
        """The exit that a result carries whose program was stopped for this reason."""
        if self is StopReason.DEADLINE:
            return ProgramExit.STOPPED_AT_DEADLINE
        return ProgramExit.TERMINATED


@dataclass(frozen=True)
class Outcome:
    """How a kind ended. The loop turns it into the run's End, and may overrule it (a stop, an isolation)."""

    outcome: Literal["COMPLETED", "FAILED"]
    exit: int | None = None
    reason: str | None = None
    answer: Mapping[str, Any] | None = None


class Work(Protocol):
    """A section of work that a stop cuts short; see HeldRun.work."""

    @property
    def stopped(self) -> StopReason | None:
        """Why the section was cut short, or None when it ran to its end."""
        ...


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended: its exit code, and the driver's reason when the driver ended it."""

    exit: int
    reason: str | None = None


class Programs(Protocol):
    """Child programs of this run."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        stdout: Path | None = None,
        timeout: float | None = None,
        door: bool = False,
        step: str | None = None,
    ) -> ProgramEnd:
        """Run a program to its end; when this returns or raises, nothing of it is alive.

        `environment` is added to the allow-list. `stdout` names a new file for its output, which else
        becomes log lines. `timeout` (seconds) ends it with exit 124 and the reason `timeout`. With `door`
        it gets the model's address and key. `step` names a short helper: the log calls it so, at debug level.
        Raises ProgramError when it cannot be started.
        """
        ...


class Workspace(Protocol):
    """The run's workspace on disk."""

    @property
    def layout(self) -> Layout: ...

    async def prepare(self) -> None:
        """Empty the workspace and unpack the run's archive into it.

        Raises ArchiveRefused, TransferFailed or a GatewayError, and leaves the workspace empty then.
        """
        ...

    async def clear(self) -> None:
        """Empty the workspace and make `work/`, `out/` and `.sessions/`, for a run that has no archive.

        Raises WorkspaceError, and leaves the workspace empty then.
        """
        ...

    async def reuse_or_prepare(self) -> bool:
        """Keep the inputs that the run before has left, if they are this run's; prepare() otherwise.

        True when they were kept: then this process has unpacked this very archive, and nothing in it has changed
        since. `out/`, `work/` and `.sessions/` are empty either way. Raises what prepare() raises.
        """
        ...


class Results(Protocol):
    """Where the run's result goes."""

    async def deliver(self, exit: int) -> str:
        """Pack `out/`, upload it with the program's exit, and return the digest that the gateway confirmed.

        Raises KindFailed with exit 43 when it cannot be packed or was not acknowledged in time.
        """
        ...


class HeldRun(Protocol):
    """A run that this driver holds, as a kind sees it."""

    @property
    def run(self) -> Run: ...

    @property
    def context(self) -> Context: ...

    @property
    def workspace(self) -> Workspace: ...

    @property
    def programs(self) -> Programs: ...

    @property
    def results(self) -> Results: ...

    @property
    def log(self) -> Log: ...

    @property
    def bundled(self) -> "BundledPrograms": ...

    def door(self) -> AbstractAsyncContextManager[None]:
        """Open the model door for this run; programs started inside with `door=True` can reach it."""
        ...

    def work(self) -> AbstractContextManager[Work]:
        """A section that the work deadline or a stop of the driver cuts short.

        The section is left when that happens; its `stopped` then tells why, and what follows it (the
        upload) still runs. A lost claim cancels the whole kind instead.
        """
        ...

    def work_seconds(self) -> float:
        """Seconds left until the work deadline."""
        ...


@dataclass(frozen=True)
class BundledPrograms:
    """The commands of the kinds' programs, and the numbers they are started with."""

    review: tuple[str, ...]
    compose: tuple[str, ...]
    digest: tuple[str, ...]
    session_heap: int
    session_size: int


class Kind(Protocol):
    """A runner for one kind of run."""

    async def run(self, held: HeldRun) -> Outcome:
        """Do the work and deliver the result.

        A KindFailed becomes a FAILED end with its exit and reason; any other exception is an internal fault.
        """
        ...
