"""Bounds on what a run's programs may use, watched from outside.

What is measured is everything below the driver that the driver does not keep for itself: a process that
left its program's tree is counted too, and programs that run side by side share one bound, as they share one
container.
"""

import os
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from driver.clock import Clock
from driver.log import Log
from driver.process.tree import Process, off_loop, strays

LOOK_INTERVAL: Final = 0.5
DISK_INTERVAL: Final = 5.0
DISK_SECONDS: Final = 2.0

# stat(2): st_blocks counts units of this size, whatever the file system's own block is.
_BLOCK_BYTES: Final = 512
_KIB: Final = 1024

LimitReason = Literal["memory", "processes", "disk"]


@dataclass(frozen=True)
class ProgramLimits:
    """Bounds for all programs of a run together.

    `memory` is in bytes of resident memory (None: no bound), `disk` in bytes below the directories that
    programs may write, `processes` a number.
    """

    memory: int | None
    disk: int
    processes: int


@dataclass(frozen=True)
class Excess:
    """A bound that was passed, and what was measured."""

    reason: LimitReason
    limit: int
    used: int


@dataclass(frozen=True)
class DiskUse:
    """Bytes on disk; at least that many if not everything could be seen in time."""

    bytes: int
    complete: bool


class LimitWatch:
    """Looks every half second at memory and processes, and every five at the disk.

    `kept` tells the driver's own children, which are not measured.
    """

    def __init__(
        self, limits: ProgramLimits, writable: Iterable[Path], *, kept: Callable[[], set[int]], clock: Clock, log: Log
    ) -> None:
        self._limits = limits
        self._writable = outermost(writable)
        self._kept = kept
        self._clock = clock
        self._log = log

    async def until_over(self) -> Excess:
        """Return the first bound that is passed. A look is made in a thread; a cancel does not wait for it."""
        disk_due = self._clock.now()
        while True:
            await self._clock.sleep(LOOK_INTERVAL)
            if excess := await off_loop(partial(tree_excess, self._limits, self._kept), abandon_on_cancel=True):
                return excess
            if self._clock.now() >= disk_due:
                if excess := await self._disk_excess():
                    return excess
                disk_due = self._clock.now() + DISK_INTERVAL

    async def _disk_excess(self) -> Excess | None:
        limit = self._limits.disk
        measure = partial(disk_use, self._writable, until=time.monotonic() + DISK_SECONDS, enough=limit)
        use = await off_loop(measure, abandon_on_cancel=True)
        if use.bytes > limit:
            return Excess("disk", limit, use.bytes)
        if not use.complete:
            self._log.warning("program.disk_unmeasured", seen_bytes=use.bytes)
        return None


def tree_excess(limits: ProgramLimits, kept: Callable[[], set[int]]) -> Excess | None:
    """Whether the processes below this one are too many or too large. Reads /proc."""
    below = strays(kept)
    if len(below) > limits.processes:
        return Excess("processes", limits.processes, len(below))
    if limits.memory is None or sum(one.resident for one in below) <= limits.memory:
        return None
    # The sum of resident sizes counts a shared page once for each process. It is cheap and never too small;
    # only when it is over the bound are the proportional sizes added up, which count each page once.
    used = sum(map(_proportional, below))
    return Excess("memory", limits.memory, used) if used > limits.memory else None


def disk_use(roots: Iterable[Path], *, until: float, enough: int) -> DiskUse:
    """Bytes on disk below `roots`, each file once, following no link.

    Gives up at `until` (of `time.monotonic`) and once more than `enough` were seen. What programs remove or
    hide meanwhile is left out.
    """
    total, complete = 0, True
    seen: set[tuple[int, int]] = set()
    directories = [str(root) for root in roots]
    while directories and total <= enough:
        if time.monotonic() >= until:
            return DiskUse(total, complete=False)
        try:
            with os.scandir(directories.pop()) as entries:
                for entry in entries:
                    total += _bytes_of(entry, seen, directories)
        except FileNotFoundError:
            continue
        except OSError:
            complete = False
    return DiskUse(total, complete)


def outermost(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The paths that are not below another of them."""
    every = sorted(set(paths))
    return tuple(path for path in every if not any(other in path.parents for other in every))


def _bytes_of(entry: "os.DirEntry[str]", seen: set[tuple[int, int]], directories: list[str]) -> int:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return 0
    if stat.S_ISDIR(status.st_mode):
        directories.append(entry.path)
    elif status.st_nlink > 1:
        if (status.st_dev, status.st_ino) in seen:
            return 0
        seen.add((status.st_dev, status.st_ino))
    return status.st_blocks * _BLOCK_BYTES


def _proportional(one: Process) -> int:
    try:
        with open(f"/proc/{one.pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * _KIB
    except OSError:
        pass
    return one.resident  # a program can forbid the look, and some kernels have no such file
