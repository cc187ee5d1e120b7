"""Kills and reaps what programs leave behind.

A process whose parent died comes back to the nearest subreaper, or to PID 1 (prctl(2)
PR_SET_CHILD_SUBREAPER). That is the driver, so nothing that a program starts can get away from it: not by
leaving the group, nor the session, nor by a double fork.
"""

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio
from anyio.to_thread import run_sync

from driver.clock import Clock
from driver.errors import ProgramError
from driver.process.tree import Waited, describe, direct_orphans, strays

if TYPE_CHECKING:
    import psutil

SWEEP_SECONDS: Final = 5.0
REAP_INTERVAL: Final = 1.0
_QUIET_LOOKS: Final = 2
_PAUSE_SECONDS: Final = 0.01
_CHASE_SECONDS: Final = 0.02
_NAMED_SURVIVORS: Final = 5

_PR_SET_CHILD_SUBREAPER: Final = 36


def become_subreaper() -> None:
    """Have every orphan below this process reparented to it. Raises ProgramError."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise ProgramError(f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(ctypes.get_errno())}")


async def sweep(waited: Waited, *, within: float = SWEEP_SECONDS) -> int:
    """Kill and reap everything below this process that nobody waits for; return how many there were.

    Ends when two looks in a row find nothing. A look that only reaps counts as one that found something, so
    a chain of processes that fork and exit, faster than /proc can be read, does not pass for nothing.
    Raises ProgramError when something is left after `within` seconds.
    """
    ends_at = anyio.current_time() + within
    quiet = 0
    seen: set[int] = set()
    while quiet < _QUIET_LOOKS:
        chased, left = await run_sync(_look, waited, limiter=anyio.CapacityLimiter(1))
        if not chased and not left:
            quiet += 1
            continue
        quiet = 0
        seen |= chased | {process.pid for process in left}
        if anyio.current_time() >= ends_at:
            raise ProgramError(await run_sync(_survivors, left, within))
        await anyio.sleep(_PAUSE_SECONDS)
    return len(seen)


async def reap_forever(waited: Waited, clock: Clock) -> None:
    """Reap orphans that have ended, once a second until cancelled; those that live are left alone."""
    while True:
        await clock.sleep(REAP_INTERVAL)
        if _any_zombie():
            await run_sync(_reap_zombies, waited, limiter=anyio.CapacityLimiter(1))


def _look(waited: Waited) -> tuple[set[int], list["psutil.Process"]]:
    chased = _chase(waited)
    left = strays(waited)
    for process in left:
        _kill(process)
    return chased, left


def _chase(waited: Waited) -> set[int]:
    """Kill and reap the orphans that came back to this process, as long as there are any, for 20 ms at most.

    A program that forks and lets the parent exit, on and on, is a new process every tenth of a millisecond.
    A look at all of /proc takes longer than that and never meets it; this does.
    """
    chased: set[int] = set()
    ends_at = time.monotonic() + _CHASE_SECONDS
    while (pids := direct_orphans(waited)) and time.monotonic() < ends_at:
        chased.update(pids)
        for pid in pids:
            _kill_child(pid, waited)
    return chased


def _kill_child(pid: int, waited: Waited) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        # Another sweep may have reaped it, and the pid may have a new owner. That is no child of ours, or
        # one that is waited for: `waited` is asked after the descriptor was opened.
        ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if pid in waited():
            return
        if ended is None:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except (ProcessLookupError, ChildProcessError, PermissionError):
        pass  # as in _kill
    finally:
        os.close(pidfd)


def _kill(process: "psutil.Process") -> None:
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return  # gone, or no descriptor is free: the next look sees which
    try:
        # The pid may have got a new owner since it was listed; if it still has the old one now, then the
        # descriptor, opened before, is that one's too.
        if process.is_running():
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except (ProcessLookupError, ChildProcessError):
        pass  # it ended, or it is somebody else's child until its parent is dead too
    except PermissionError:
        pass  # it runs as another user; it is named when the sweep gives up
    finally:
        os.close(pidfd)


def _any_zombie() -> bool:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _reap_zombies(waited: Waited) -> None:
    import psutil

    children = psutil.Process().children()
    for pid in {child.pid for child in children} - waited():
        with suppress(ChildProcessError):  # a sweep took it meanwhile
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def _survivors(found: list["psutil.Process"], within: float) -> str:
    if not found:
        return f"after {within:g} s the program still starts processes as fast as they are killed"
    named = ", ".join(describe(process) for process in found[:_NAMED_SURVIVORS])
    return f"{len(found)} processes of the program are left {within:g} s after SIGKILL: {named}"
