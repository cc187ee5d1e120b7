"""Runs the programs of one run, and leaves nothing of them behind."""

import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import anyio

from driver.clock import Clock
from driver.errors import NO_ROOM, ProgramError
from driver.exits import ProgramExit
from driver.kind import ProgramEnd
from driver.log import Log
from driver.process.child import Child
from driver.process.children import Children
from driver.process.confinement import Confinement
from driver.process.environment import DoorAddress, ProgramFacts, program_environment
from driver.process.hung import doing, living
from driver.process.limits import LimitWatch, ProgramLimits
from driver.process.line import needs_keeper
from driver.process.newfile import create_below
from driver.process.orphans import sweep
from driver.process.output import OutputBudget
from driver.process.reader import PipeReader
from driver.process.room import has_room
from driver.process.tree import off_loop

TIMEOUT: Final = "timeout"
STOPPED: Final = "stopped"
FILE_SIZE: Final = "file_size"


@dataclass
class _Ending:
    """What is known of a program's end. `reason` is None while, or if, it ended by itself."""

    reason: str | None = None
    exit: int | None = None
    fault: ProgramError | None = None

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Keep the first ProgramError of several steps."""
        try:
            yield
        except ProgramError as error:
            self.fault = self.fault or error

    def told(self, exit: int, ended_by: int | None, *, room: bool) -> None:
        """The program ended with this exit code, or by this signal, which tells of a file that became too long.

        One that fails by itself on a disk without `room` fails for that; one that was killed, or was not done in its
        time, has the exit that says so.
        """
        if self.reason == TIMEOUT:
            self.exit = int(ProgramExit.STOPPED_AT_DEADLINE)
        elif self.reason not in (None, STOPPED):
            self.exit = int(ProgramExit.KILLED)
        else:
            self.exit = exit
            if self.reason is None and ended_by == signal.SIGXFSZ:
                self.reason = FILE_SIZE
            elif self.reason is None and exit != 0 and not room:
                self.reason = NO_ROOM


class ProgramRunner:
    """The child programs of one run (driver.kind.Programs).

    `grace` tells how many seconds a program has between SIGTERM and SIGKILL, and is asked when it is
    stopped. `door` tells where the run's model door listens, or None while it is closed. `children` is the
    one registry of this process, which has to be a subreaper (`orphans.become_subreaper`) or PID 1. `hidden` are files
    that programs may not read.
    """

    def __init__(
        self,
        facts: ProgramFacts,
        *,
        limits: ProgramLimits,
        children: Children,
        door: Callable[[], DoorAddress | None],
        grace: Callable[[], float],
        clock: Clock,
        log: Log,
        hidden: tuple[Path, ...] = (),
    ) -> None:
        self._facts = facts
        self._confinement = Confinement(facts.layout.writable, file_bytes=limits.disk, hidden=hidden)
        self._limits = limits
        self._children = children
        self._door = door
        self._grace = grace
        self._clock = clock
        self._log = log
        self._budget = OutputBudget()
        self._running: set[Child] = set()

    def kill(self) -> None:
        """End the programs that run, or what is left of their grace, now. `run` then returns or raises as ever."""
        for child in self._running:
            child.signal_group(signal.SIGKILL)

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
        """Run a program to its end; see driver.kind.Programs.

        A program that passes a limit is killed: exit 137, and the reason `memory`, `processes` or `disk`; one that
        writes a longer file than `disk` has the exit 153 and the reason `file_size`; one that fails on a full disk has
        its own exit and the reason `disk`. A cancel stops it with the grace.
        Raises ProgramError if it cannot be started, if the door is asked for and closed, if a secret is among `argv` or
        `environment`, or if something of it cannot be killed.
        """
        exact = self._environment(argv, environment or {}, door=door)
        with ExitStack() as files:
            output = None
            if stdout is not None:
                output = create_below(self._facts.layout.root, stdout)
                files.callback(os.close, output)
            child = Child.spawn(
                argv,
                cwd=cwd,
                environment=exact,
                children=self._children,
                confinement=self._confinement,
                stdout=output,
                keeper=needs_keeper(),
            )
        self._running.add(child)
        try:
            log = self._log.info if step is None else self._log.debug
            name = step or os.path.basename(argv[0])
            end = await self._supervise(
                child, partial(child.started, argv[0], cwd), partial(log, program=name), timeout
            )
            if end.reason == NO_ROOM:
                self._log.warning("program.no_room", program=name, exit=end.exit)
            return end
        finally:
            self._running.discard(child)

    def _environment(self, argv: Sequence[str], added: Mapping[str, str], *, door: bool) -> dict[str, str]:
        for text in (*argv, *added, *added.values()):
            if self._log.secrets.mask(text) != text:
                raise ProgramError("a secret may not be handed to a program by its arguments or environment")
        address = self._door() if door else None
        if door and address is None:
            raise ProgramError("a program that needs the model door was started while the door is closed")
        return {**program_environment(self._facts, address), **added}

    async def _supervise(
        self, child: Child, started: Callable[[], Awaitable[None]], tell: Callable[..., None], timeout: float | None
    ) -> ProgramEnd:
        started_at = self._clock.now()
        ending = _Ending(reason=STOPPED)
        try:
            # Readers take no part in a cancel: they are told when the program has ended.
            async with anyio.create_task_group() as reading:
                readers = self._readers(child)
                try:
                    for reader in readers:
                        reading.start_soon(reader.run)
                    tell("program.started", pid=child.pid)
                    with ending.faults():
                        await started()
                        ending.reason = await self._until_over(child, timeout)
                finally:
                    with anyio.CancelScope(shield=True):  # bounded: by the grace, the kill and the sweep
                        await self._end(child, ending)
                    for reader in readers:
                        reader.finish()
        finally:
            self._tell_end(tell, ending, self._clock.now() - started_at)
            if ending.fault is not None:
                raise ending.fault
        assert ending.exit is not None  # else there was a fault
        return ProgramEnd(ending.exit, ending.reason)

    def _readers(self, child: Child) -> list[PipeReader]:
        readers = [PipeReader(child.stderr, "stderr", log=self._log, budget=self._budget)]
        if child.stdout is not None:
            readers.append(PipeReader(child.stdout, "stdout", log=self._log, budget=self._budget))
        return readers

    async def _until_over(self, child: Child, timeout: float | None) -> str | None:
        """Return None when the program ended by itself, or why it has to be ended."""
        reason: str | None = None
        async with anyio.create_task_group() as watching:

            def over(why: str) -> None:
                nonlocal reason
                reason = reason or why
                watching.cancel_scope.cancel()

            watching.start_soon(self._watch_limits, over)
            if timeout is not None:
                watching.start_soon(self._watch_time, timeout, over)
            await child.wait_exited()
            watching.cancel_scope.cancel()
        return None if child.exited() else reason

    async def _watch_limits(self, over: Callable[[str], None]) -> None:
        watch = LimitWatch(
            self._limits,
            self._facts.layout.writable,
            kept=self._children.spared,
            clock=self._clock,
            log=self._log,
        )
        excess = await watch.until_over()
        self._log.warning("program.over_limit", reason=excess.reason, limit=excess.limit, used=excess.used)
        over(excess.reason)

    async def _watch_time(self, timeout: float, over: Callable[[str], None]) -> None:
        await self._clock.sleep(timeout)
        over(TIMEOUT)

    async def _end(self, child: Child, ending: _Ending) -> None:
        """See that nothing of the program is left; a ProgramError goes to `ending`, past the task group."""
        try:
            if ending.reason in (STOPPED, TIMEOUT):
                await self._terminate(child, ending.reason)
        finally:
            child.kill()
            with ending.faults():
                await sweep(self._children)
            # Last, as it may have to wait for the CPU that its own processes used.
            with ending.faults():
                exit = await child.reap()
                ending.told(exit, child.ended_by, room=has_room(self._facts.layout.writable))

    async def _terminate(self, child: Child, reason: str) -> None:
        # A keeper only waits for the program, which is one of its group.
        found = await off_loop(partial(living if needs_keeper() else doing, child.pid))
        self._log.info("program.stopping", pid=child.pid, reason=reason, doing=found)
        grace = self._grace()
        await child.terminate(grace)
        if grace > 0 and (left := await off_loop(partial(living, child.pid))):
            self._log.warning("program.grace_over", pid=child.pid, grace_seconds=round(grace, 3), left=left)

    def _tell_end(self, tell: Callable[..., None], ending: _Ending, seconds: float) -> None:
        dropped = {"dropped_bytes": self._budget.dropped} if self._budget.dropped else {}
        tell("program.ended", exit=ending.exit, reason=ending.reason, seconds=round(seconds, 3), **dropped)
