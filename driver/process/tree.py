"""Which processes are below this one, as /proc tells it.

These functions read /proc and block: call them in a thread. psutil is imported by the first look only,
since a driver that waits for its first run has no use for it.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

Waited = Callable[[], set[int]]
"""Tells the pids of the children that somebody waits for; driver.process.children has the real one."""


def strays(waited: Waited) -> list["psutil.Process"]:
    """The processes below this one that belong to nobody who is waited for.

    Spared are the waited ones, what is below them, and what lives in their session. A process of theirs that
    left both is a stray: it cannot be told from a left-over of a program that has ended.
    """
    import psutil

    # Listed first, asked second: a child that starts in between is not in the list, and one that is in
    # the list has been registered by the time that `waited` answers (see Children).
    below = psutil.Process().children(recursive=True)
    spared = waited()
    parents = {process.pid: _parent(process) for process in below}
    return [process for process in below if not _belongs(process, parents, spared)]


def direct_orphans(waited: Waited) -> list[int]:
    """The children of this process that are strays, by a look that takes microseconds.

    Empty where the kernel has no /proc/PID/task/TID/children (CONFIG_PROC_CHILDREN).
    """
    children = [pid for thread in os.listdir("/proc/self/task") for pid in _children_of(thread)]
    spared = waited()
    return [pid for pid in children if pid not in spared and _session_of(pid) not in spared]


def group_members(group: int) -> list[int]:
    """The pids of a process group that still run; zombies are left out."""
    import psutil

    return [pid for pid in psutil.pids() if _group_of(pid) == group and _alive(pid)]


def describe(process: "psutil.Process") -> str:
    """A process in a few words, for an error."""
    import psutil

    try:
        return f"{process.pid} ({process.name()}, {process.status()})"
    except psutil.Error:
        return f"{process.pid} (gone by now)"


def _belongs(process: "psutil.Process", parents: dict[int, int], spared: set[int]) -> bool:
    pid = process.pid
    for _ in range(len(parents) + 1):
        if pid in spared:
            return True
        if pid not in parents:
            break
        pid = parents[pid]
    return _session_of(process.pid) in spared and _alive(process.pid)


def _children_of(thread: str) -> list[int]:
    try:
        with open(f"/proc/self/task/{thread}/children", "rb") as children:
            return [int(pid) for pid in children.read().split()]
    except OSError:
        return []


def _parent(process: "psutil.Process") -> int:
    import psutil

    try:
        return process.ppid()
    except psutil.Error:
        return 0


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _alive(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
