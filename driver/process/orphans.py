"""Kills and reaps what programs leave behind.

A process whose parent died comes back to the nearest subreaper, or to PID 1 (prctl(2)
PR_SET_CHILD_SUBREAPER). That is the driver, so nothing that a program starts can get away from it: not by
leaving the group, nor the session, nor by a double fork.
"""

import os
import signal
import time
from contextlib import suppress
from functools import partial
from typing import Final

import anyio

from driver.clock import Clock
from driver.errors import ProgramError
from driver.process.children import Children
from driver.process.tree import Process, direct_children, off_loop, process, processes, session_of, strays

SWEEP_SECONDS: Final = 5.0
REAP_INTERVAL: Final = 1.0
_QUIET_LOOKS: Final = 2
_PAUSE_SECONDS: Final = 0.01
_CHASE_SECONDS: Final = 0.02
_NAMED_SURVIVORS: Final = 5
# What a program usually leaves is gone after so many looks, and is few processes, no crowd.
_LOOKS: Final = 3
_FEW: Final = 32
_CROWD: Final = 64
_LEAST_LOOKS: Final = 10

_PR_SET_CHILD_SUBREAPER: Final = 36


def become_subreaper() -> None:
    """Have every orphan below this process reparented to it, and the statuses of children kept.

    Called in the main thread. Raises ProgramError.
    """
    import ctypes

    # Who started this process may have ignored it, and that outlives an exec: the statuses would be thrown away
    # (wait(2), "NOTES").
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise ProgramError(f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(ctypes.get_errno())}")


async def sweep(children: Children, *, within: float = SWEEP_SECONDS) -> int:
    """Kill and reap everything below this process that nobody keeps; return how many there were.

    Ends when two looks in a row find nothing. A look that only reaps counts as one that found something, so
    a chain of processes that fork and exit, faster than /proc can be read, does not pass for nothing.
    Raises ProgramError when something is left after `within` seconds, seen by a look that began later than that and
    was not one of the first ten: among hundreds of busy processes a single look may take seconds, and what it finds
    was not killed yet.

    While other programs run, their orphans cannot be told from what is swept here. So they are killed too, but a
    few looks are enough then: the sweep after the last program is the one that counts.
    """
    ends_at = anyio.current_time() + within
    looks = quiet = 0
    seen: set[int] = set()
    while quiet < _QUIET_LOOKS:
        looks += 1
        late = anyio.current_time() >= ends_at and looks > _LEAST_LOOKS
        chased, left = await off_loop(partial(_look, children, stubborn=looks > _LOOKS))
        if not chased and not left:
            quiet += 1
            continue
        quiet = 0
        seen |= chased | {one.pid for one in left}
        if looks > _LOOKS and children.kept() != children.spared():
            break
        if late:
            raise ProgramError(_survivors(left, within))
        await anyio.sleep(_PAUSE_SECONDS)
    return len(seen)


async def reap_forever(children: Children, clock: Clock) -> None:
    """Reap orphans that have ended, once a second until cancelled; those that live are left alone."""
    while True:
        await clock.sleep(REAP_INTERVAL)
        if _any_zombie():
            await off_loop(partial(_reap_zombies, children))


def _look(children: Children, *, stubborn: bool) -> tuple[set[int], list[Process]]:
    if os.getpid() == 1 and (stubborn or _crowded()) and not children.kept():
        _kill_namespace()
    left = _left(children)
    living = [one for one in left if not one.ended]
    for one in living:
        _kill(one)
    if len(living) > _FEW:
        # What forks on and on has run into some limit on processes. A zombie holds its place there: to reap it now
        # would let the others go on.
        return set(), left
    for one in left:
        if one.ended:
            _end_child(one.pid, children, kill=False)
    return _chase(children), left


def _left(children: Children) -> list[Process]:
    found = strays(children.kept)
    waited = children.waited()
    return [one for one in found if one.pid not in waited]


def _crowded() -> bool:
    return sum(map(str.isdigit, os.listdir("/proc"))) > _CROWD


def _kill_namespace() -> None:
    """Kill everything but this process, which is PID 1, in one call.

    The kernel lets no fork pass by it (kill(2), fork(2)), so it ends what forks faster than it can be listed. It
    also ends what somebody else started in this container, `kubectl exec` say, and is therefore not the rule.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.kill(-1, signal.SIGKILL)


def _chase(children: Children) -> set[int]:
    """Kill and reap the orphans that came back to this process, as long as there are any, for 20 ms at most.

    A program that forks and lets the parent exit, on and on, is a new process every tenth of a millisecond.
    A look at all of /proc takes longer than that and never meets it; this does.
    """
    chased: set[int] = set()
    ends_at = time.monotonic() + _CHASE_SECONDS
    while (pids := _direct_orphans(children)) and time.monotonic() < ends_at:
        chased.update(pids)
        for pid in pids:
            _end_child(pid, children, kill=True)
    return chased


def _direct_orphans(children: Children) -> list[int]:
    pids = direct_children()
    waited, kept = children.waited(), children.kept()
    return [pid for pid in pids if pid not in waited and session_of(pid) not in kept]


def _end_child(pid: int, children: Children, *, kill: bool) -> None:
    """Reap a child that has ended; with `kill`, end it first."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        # Another sweep may have reaped it, and the pid may have a new owner. That is no child of ours, or
        # one that is waited for: `waited` is asked after the descriptor was opened.
        ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if pid in children.waited():
            return
        if ended is None and kill:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except (ProcessLookupError, ChildProcessError, PermissionError):
        pass  # as in _kill
    finally:
        os.close(pidfd)


def _kill(listed: Process) -> None:
    try:
        pidfd = os.pidfd_open(listed.pid)
    except OSError:
        return  # gone, or no descriptor is free: the next look sees which
    try:
        # The pid may have got a new owner since it was listed; if it still has the old one now, then the
        # descriptor, opened before, is that one's too.
        now = process(listed.pid)
        if now is not None and now.started == listed.started:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it ended, or it runs as another user; that one is named when the sweep gives up
    finally:
        os.close(pidfd)


def _any_zombie() -> bool:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _reap_zombies(children: Children) -> None:
    own = os.getpid()
    for one in processes().values():
        if one.parent == own and one.ended:
            _end_child(one.pid, children, kill=False)


def _survivors(found: list[Process], within: float) -> str:
    if not found:
        return f"after {within:g} s the program still starts processes as fast as they are killed"
    named = ", ".join(map(str, found[:_NAMED_SURVIVORS]))
    return f"{len(found)} processes of the program are left {within:g} s after SIGKILL: {named}"
