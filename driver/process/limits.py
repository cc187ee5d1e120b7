"""Bounds on what a run's programs may use, watched from outside.

What is measured is everything below the driver that the driver does not keep for itself: a process that
left its program's tree is counted too, and programs that run side by side share one bound, as they share one
container.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from driver.clock import Clock
from driver.log import Log
from driver.process.disk import disk_use, outermost
from driver.process.tree import Process, off_loop, strays
from driver.process.unlinked import Unlinked, mapped, unlinked

LOOK_INTERVAL: Final = 0.5
DISK_INTERVAL: Final = 5.0
DISK_SECONDS: Final = 2.0
LONGEST_DISK_SECONDS: Final = 32.0
UNLINKED_SECONDS: Final = 1.0
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
        self._disk_seconds = DISK_SECONDS

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
        held = await off_loop(partial(_held_on_disk, self._kept), abandon_on_cancel=True)
        measure = partial(
            disk_use, self._writable, until=time.monotonic() + self._disk_seconds, enough=max(0, limit - held)
        )
        use = await off_loop(measure, abandon_on_cancel=True)
        if use.bytes + held > limit:
            return Excess("disk", limit, use.bytes + held)
        if not use.complete:
            self._log.warning("program.disk_unmeasured", seen_bytes=use.bytes + held)
            # Else a program could hide anything behind more files than can be seen in that time.
            self._disk_seconds = min(LONGEST_DISK_SECONDS, 2 * self._disk_seconds)
        return None


def tree_excess(limits: ProgramLimits, kept: Callable[[], set[int]]) -> Excess | None:
    """Whether the processes below this one are too many or too large. Reads /proc."""
    below = strays(kept)
    if len(below) > limits.processes:
        return Excess("processes", limits.processes, len(below))
    if limits.memory is None:
        return None
    files = [one for one in _unlinked_by(below) if one.in_memory]
    in_files = sum(one.bytes for one in files)
    if in_files + sum(one.resident for one in below) <= limits.memory:
        return None
    # That sum counts a shared page once for each process, and a mapped file in memory once more. It is cheap and never
    # too small; only when it is over the bound are the proportional sizes added up, which count each page once.
    used = in_files + sum(map(_proportional, below))
    if files and used > limits.memory:
        used -= sum(mapped(one.pid, files) for one in below)
    return Excess("memory", limits.memory, used) if used > limits.memory else None


def _held_on_disk(kept: Callable[[], set[int]]) -> int:
    return sum(one.bytes for one in _unlinked_by(strays(kept)) if not one.in_memory)


def _unlinked_by(below: Iterable[Process]) -> list[Unlinked]:
    return unlinked((one.pid for one in below if not one.ended), until=time.monotonic() + UNLINKED_SECONDS)


def _proportional(one: Process) -> int:
    try:
        with open(f"/proc/{one.pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * _KIB
    except OSError:
        pass
    return one.resident  # a program can forbid the look, and some kernels have no such file
