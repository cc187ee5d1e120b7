"""One child process in a session and process group of its own.

Its end is seen through a pidfd (pidfd_open(2)), and its status is taken here only: no SIGCHLD handler and no
child watcher of the event loop is involved. The ended leader is kept as a zombie until its group was killed,
since as long as it is there, neither its pid nor its group's number can go to anybody else.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Final

import anyio

from driver.errors import HardeningFailed, ProgramError
from driver.exits import from_wait_status
from driver.process.children import Children
from driver.process.confinement import Confinement
from driver.process.line import Line
from driver.process.popen import pipe, popen_in_session, why_not_started
from driver.process.tree import group_members, off_loop

KILL_SECONDS: Final = 5.0
"""How long a killed process may take to end: longer means that it hangs inside the kernel, or gets no CPU."""


class _State(Enum):
    RUNNING = auto()
    ZOMBIE = auto()
    REAPED = auto()
    TAKEN = auto()


class Child:
    """A running program. Make one with `spawn`; then `kill` and `reap` have to be called, once, on every path.

    `stdout` (None where it goes to a file) and `stderr` are the non-blocking reading ends of its pipes;
    who reads them closes them.
    """

    def __init__(
        self,
        popen: "subprocess.Popen[bytes]",
        pidfd: int,
        children: Children,
        line: Line | None,
        *,
        stdout: int | None,
        stderr: int,
    ) -> None:
        self._popen = popen
        self._pidfd = pidfd
        self._children = children
        self._line = line
        self.pid = popen.pid
        self.stdout = stdout
        self.stderr = stderr

    @classmethod
    def spawn(
        cls,
        argv: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        children: Children,
        confinement: Confinement,
        stdout: int | None = None,
        keeper: bool = False,
    ) -> "Child":
        """Start `argv`, confined, with exactly this environment and an empty stdin. Raises ProgramError.

        `stdout` is a descriptor for its output, which stays the caller's. This blocks for the time of an
        exec, about a millisecond. With a `keeper`, which ends the program when this process is killed, that is the
        leader, and `started` tells whether the program could be started.
        """
        if not argv:
            raise ProgramError("a program cannot be started: its command is empty")
        with ExitStack() as on_failure, ExitStack() as writing_ends:
            try:
                out_reader, out = (None, stdout) if stdout is not None else pipe(on_failure, writing_ends)
                err_reader, err = pipe(on_failure, writing_ends)
                line = Line() if keeper else None
                if line is not None:
                    on_failure.callback(line.close)
                starting = partial(
                    popen_in_session, argv, line, cwd=cwd, environment=environment, stdout=out, stderr=err
                )
                popen = _start(starting, children, confinement)
                if line is not None:
                    line.hand_over()
                pidfd = _open_pidfd(popen, children)
            except HardeningFailed as error:
                raise ProgramError(f"{argv[0]} cannot be started: it cannot be confined: {error}") from error
            except (OSError, ValueError) as error:
                raise ProgramError(why_not_started(argv[0], cwd, error)) from error
            on_failure.pop_all()
        return cls(popen, pidfd, children, line, stdout=out_reader, stderr=err_reader)

    async def started(self, name: str, cwd: Path) -> None:
        """Return once the program runs. Raises ProgramError where its keeper could not start it."""
        if self._line is not None and (number := await self._line.fault()) is not None:
            raise ProgramError(why_not_started(name, cwd, OSError(number, os.strerror(number))))

    def exited(self) -> bool:
        """Whether the leader has ended by now."""
        return self._state() is not _State.RUNNING

    async def wait_exited(self) -> None:
        """Return once the leader has ended. It is not reaped by this; one task at a time may wait."""
        if not self.exited():
            await anyio.wait_readable(self._pidfd)

    @property
    def ended_by(self) -> int | None:
        """The signal that ended the leader; None where it was none, and before the reap."""
        code = self._popen.returncode
        return -code if code is not None and code < 0 else None

    def signal_group(self, sig: signal.Signals) -> None:
        """Send a signal to the whole group. After the reap this does nothing."""
        if self._state() in (_State.RUNNING, _State.ZOMBIE):
            # No member that may be signalled: whoever checks for survivors reports those of another user.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, sig)

    async def terminate(self, grace: float) -> None:
        """SIGTERM to the group, and at most `grace` seconds for it to end; without a grace nothing.

        Cannot be cancelled. The grace is the whole group's: where the leader is a shell that dies at once, the program
        that it started can still put its files in order.
        """
        if grace <= 0:
            return
        with anyio.move_on_after(grace, shield=True):
            self.signal_group(signal.SIGTERM)
            self.signal_group(signal.SIGCONT)  # a stopped process could not act on the SIGTERM
            await self.wait_exited()
            await self._wait_group()

    def kill(self) -> None:
        """SIGKILL to the group. From now on whatever is below the leader, in the group or not, is an orphan."""
        self._children.condemn(self.pid)
        self.signal_group(signal.SIGKILL)

    async def reap(self) -> int:
        """Reap the leader, which was killed or has ended, and return its exit code. Cannot be cancelled.

        Raises ProgramError if it is not gone after five seconds (it is an orphan then), or if its status was lost.
        """
        with anyio.move_on_after(KILL_SECONDS, shield=True):
            await self.wait_exited()
        if not self.exited():
            self._abandon()
            raise ProgramError(f"process {self.pid} is still there {KILL_SECONDS:g} s after SIGKILL")
        # Again: another process of the session may have joined the group since (setpgid(2)).
        self.signal_group(signal.SIGKILL)
        return self._reap()

    def _state(self) -> "_State":
        if self._popen.returncode is not None:
            return _State.REAPED
        try:
            ended = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return _State.TAKEN
        return _State.RUNNING if ended is None else _State.ZOMBIE

    def _reap(self) -> int:
        state = self._state()
        if state is not _State.REAPED:
            self._children.reaped(self.pid, self._popen.wait)
            self._close()
        if state is _State.TAKEN:
            # subprocess reports 0 then, which would pass for a success.
            raise ProgramError(f"the exit status of process {self.pid} was taken by somebody else")
        return from_wait_status(self._popen.returncode)

    def _abandon(self) -> None:
        # Else subprocess would look after it, and might take the status of the pid's next owner.
        self._popen.returncode = -signal.SIGKILL
        self._children.abandoned(self.pid)
        self._close()

    def _close(self) -> None:
        os.close(self._pidfd)
        if self._line is not None:
            self._line.close()

    async def _wait_group(self) -> None:
        while members := await off_loop(partial(group_members, self.pid), abandon_on_cancel=True):
            for pid in members:
                await _wait_end(pid)


async def _wait_end(pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await anyio.wait_readable(pidfd)
    finally:
        os.close(pidfd)


def _start(
    starting: Callable[[], "subprocess.Popen[bytes]"], children: Children, confinement: Confinement
) -> "subprocess.Popen[bytes]":
    popen: subprocess.Popen[bytes] | None = None

    def start() -> int:
        nonlocal popen
        popen = confinement.start(starting)
        return popen.pid

    pid = children.started(start)
    assert popen is not None
    try:
        confinement.limit(pid)
    except BaseException:
        _discard(popen, children)
        raise
    return popen


def _open_pidfd(popen: "subprocess.Popen[bytes]", children: Children) -> int:
    try:
        return os.pidfd_open(popen.pid)
    except OSError:
        _discard(popen, children)
        raise


def _discard(popen: "subprocess.Popen[bytes]", children: Children) -> None:
    os.killpg(popen.pid, signal.SIGKILL)
    children.reaped(popen.pid, popen.wait)
