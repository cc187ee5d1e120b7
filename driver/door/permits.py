"""The door's budgets: transport permits, the parsing permit, and the bytes that exchanges retain.

All three are local, bounded and first in first out; none is durable. The order is always transport, then
parsing: nobody waits for a transport permit while holding the parsing permit, so the work that must finish
before a transport permit comes back can always finish.

Every decision is taken in plain synchronous code, on one event loop; only waiting awaits.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio

from driver.errors import DoorRefusal

_MIB: Final = 1024 * 1024

RETRY_AFTER: Final = 1
"""Seconds after which a call that found no room may be tried again."""


@dataclass(frozen=True)
class PermitStatistics:
    """What a semaphore holds at one moment: permits out, callers waiting, and both limits.

    `places` is None where any number may wait.
    """

    active: int
    waiting: int
    limit: int
    places: int | None


@dataclass(eq=False)
class Waiter:
    """One caller's place: `granted` is set when it holds a permit."""

    granted: anyio.Event = field(default_factory=anyio.Event)


class FifoSemaphore:
    """A counted semaphore with a bounded queue, first in first out. Synchronous: it decides, others wait.

    A caller `enter`s once and then, whatever happened to it, `leave`s once.
    """

    def __init__(self, limit: int, places: int | None = None) -> None:
        self._limit = limit
        self._places = places
        self._active: set[Waiter] = set()
        self._queue: deque[Waiter] = deque()

    def enter(self) -> Waiter | None:
        """A permit or a place in the queue, or None when the queue is full."""
        waiter = Waiter()
        if len(self._active) < self._limit:
            # Free permits never coexist with waiters: `leave` hands a permit on before anybody can enter.
            self._grant(waiter)
        elif self._places is not None and len(self._queue) >= self._places:
            return None
        else:
            self._queue.append(waiter)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Give up the place in the queue, or hand the permit to the caller that has waited longest.

        Raises ValueError when the waiter has left before.
        """
        if waiter not in self._active:
            self._queue.remove(waiter)
            return
        self._active.remove(waiter)
        if self._queue:
            self._grant(self._queue.popleft())

    def _grant(self, waiter: Waiter) -> None:
        self._active.add(waiter)
        waiter.granted.set()

    def statistics(self) -> PermitStatistics:
        return PermitStatistics(len(self._active), len(self._queue), self._limit, self._places)


class TransportPermits:
    """Permits for whole model exchanges, shared by all runs of one driver.

    `wait` is the longest time in the queue, in seconds.
    """

    def __init__(self, active: int = 32, queue: int = 128, wait: float = 30.0) -> None:
        self._semaphore = FifoSemaphore(active, queue)
        self._wait = wait

    @asynccontextmanager
    async def hold(self, on_waiting: Callable[[PermitStatistics], None]) -> AsyncIterator[None]:
        """Hold one permit; it is given back when the block is left, so everything must have settled by then.

        `on_waiting` is called once if the caller has to wait. Raises DoorRefusal `local_capacity` when the
        queue is full, or the wait is over.
        """
        waiter = self._semaphore.enter()
        if waiter is None:
            raise _no_capacity(f"{self._full()}, and all waiting places are taken")
        try:
            if not waiter.granted.is_set():
                on_waiting(self.statistics())
                with anyio.move_on_after(self._wait):
                    await waiter.granted.wait()
                # A permit that came together with the time-out is kept: it was granted.
                if not waiter.granted.is_set():
                    raise _no_capacity(f"{self._full()}, and none came back within {self._wait:g} s")
            yield
        finally:
            self._semaphore.leave(waiter)

    def _full(self) -> str:
        return f"all {self.statistics().limit} model calls that the sandbox may have open are in use"

    def statistics(self) -> PermitStatistics:
        """Exchanges that hold a permit, and calls that wait for one."""
        return self._semaphore.statistics()


class ParsingPermit:
    """The one permit for short steps that parse, shared by all runs of one driver.

    It is held while a step works, never while waiting for the provider or the program.
    """

    def __init__(self) -> None:
        self._semaphore = FifoSemaphore(1)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Hold the permit for one step."""
        waiter = self._semaphore.enter()
        assert waiter is not None  # its queue has no bound: transport permits bound who can be in it
        try:
            await waiter.granted.wait()
            yield
        finally:
            self._semaphore.leave(waiter)

    def statistics(self) -> PermitStatistics:
        """Steps that hold the permit, and steps that wait for it."""
        return self._semaphore.statistics()


@dataclass(frozen=True)
class StorageStatistics:
    """Bytes that are reserved now, and the limit."""

    reserved: int
    limit: int


class Storage:
    """The bytes that all exchanges together may retain."""

    def __init__(self, limit: int = 512 * _MIB) -> None:
        self._limit = limit
        self._reserved = 0

    @contextmanager
    def retain(self) -> Iterator["Retained"]:
        """An account that is empty at first; whatever it holds is returned when the block is left."""
        retained = Retained(self)
        try:
            yield retained
        finally:
            retained.resize(0)

    def move(self, held: int, wanted: int) -> None:
        """Exchange `held` reserved bytes for `wanted`. Raises DoorRefusal `local_capacity`, and changes nothing."""
        if wanted > held and self._reserved - held + wanted > self._limit:
            raise _no_capacity(f"model calls hold {self._reserved:,} of the {self._limit:,} bytes that they may retain")
        self._reserved += wanted - held

    def statistics(self) -> StorageStatistics:
        return StorageStatistics(self._reserved, self._limit)


class Retained:
    """What one exchange has reserved of the storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes that are reserved by this exchange."""
        return self._held

    def resize(self, size: int) -> None:
        """Hold `size` bytes from now on; to be called before they are taken. Raises DoorRefusal."""
        self._storage.move(self._held, size)
        self._held = size


@dataclass(frozen=True)
class Budgets:
    """The three budgets of one driver, shared by the doors of all its runs."""

    transports: TransportPermits = field(default_factory=TransportPermits)
    parsing: ParsingPermit = field(default_factory=ParsingPermit)
    storage: Storage = field(default_factory=Storage)


def _no_capacity(detail: str) -> DoorRefusal:
    return DoorRefusal(429, "local_capacity", f"{detail}; try again", retry_after=RETRY_AFTER)
