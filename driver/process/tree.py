"""Which processes are below this one, as /proc tells it.

One look reads one small file for each process of the machine, and blocks for that time: some microseconds each.
So a look is made by `off_loop`.
"""

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import anyio
from anyio.to_thread import run_sync

T = TypeVar("T")

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Process:
    """What /proc/PID/stat tells of a process (proc_pid_stat(5)).

    `started` is in clock ticks since the boot; with it a pid is told from its next owner. `resident` is in bytes.
    """

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    started: int
    resident: int

    @property
    def ended(self) -> bool:
        """Whether it is a zombie, or just going."""
        return self.state in ("Z", "X")

    def __str__(self) -> str:
        return f"{self.pid} ({self.name}, state {self.state})"


def process(pid: int) -> Process | None:
    """The process of that number, or None where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(4096).decode("utf-8", "replace")
    except OSError:  # also ESRCH, when it goes while it is read
        return None
    # A name may hold spaces and parentheses.
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return Process(
        pid=pid,
        name=name,
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        started=int(fields[19]),
        resident=int(fields[21]) * _PAGE_BYTES,
    )


def processes() -> dict[int, Process]:
    """All processes that /proc shows, by pid."""
    found: dict[int, Process] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if (one := process(int(pid))) is not None:
            found[one.pid] = one
    # Whose parent is missing has got another one while the list was made.
    for one in [one for one in found.values() if one.parent and one.parent not in found]:
        if (again := process(one.pid)) is not None:
            found[one.pid] = again
    return found


def strays(kept: Callable[[], set[int]]) -> list[Process]:
    """The processes below this one that belong to none of the pids that `kept` tells.

    A kept one itself, what is below it, and what lives in its session are left out. A process of theirs that left
    both is a stray: it cannot be told from a left-over of a program that has ended.
    """
    below: dict[int, list[Process]] = defaultdict(list)
    for one in processes().values():
        below[one.parent].append(one)
    # Listed first, asked second: a child that starts in between is not in the list, and one that is in
    # the list has been registered by the time that `kept` answers (see Children).
    spared = kept()
    found: list[Process] = []
    parents = [os.getpid()]
    while parents:
        for one in below[parents.pop()]:
            if one.pid not in spared:
                parents.append(one.pid)
                if one.ended or one.session not in spared:
                    found.append(one)
    return found


def direct_children() -> list[int]:
    """The pids of this process's children, by a look that takes microseconds.

    Empty where the kernel has no /proc/PID/task/TID/children (CONFIG_PROC_CHILDREN).
    """
    return [pid for thread in os.listdir("/proc/self/task") for pid in _children_of(thread)]


def session_of(pid: int) -> int:
    """The session of a process, or 0."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def group_members(group: int) -> list[int]:
    """The pids of a process group that still run; zombies are left out."""
    return [one.pid for one in processes().values() if one.group == group and not one.ended]


async def off_loop(look: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
    """Make a look in a thread; where no thread can be had, since a program used up all processes, right here."""
    try:
        return await run_sync(look, abandon_on_cancel=abandon_on_cancel, limiter=anyio.CapacityLimiter(1))
    except RuntimeError:  # how threading.Thread.start fails
        return look()


def _children_of(thread: str) -> list[int]:
    try:
        with open(f"/proc/self/task/{thread}/children", "rb") as children:
            return [int(pid) for pid in children.read().split()]
    except OSError:
        return []
