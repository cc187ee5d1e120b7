"""The session heap: how many sessions may be alive at once, counted in bytes of their transcripts.

Each session costs its share, or what its transcript really holds once that is more. Sessions start first
in, first out, and only while there is room. Decisions are synchronous; only the waiting is not.
"""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio


@dataclass(frozen=True)
class HeapStatistics:
    """A snapshot. `used`, `peak_used`, `total` and `share` are bytes."""

    total: int
    share: int
    used: int
    sessions: int
    waiting: int
    peak_used: int
    peak_sessions: int


class Room:
    """What one session holds of the heap. Only the heap makes one."""

    def __init__(self, heap: "SessionHeap") -> None:
        self._heap = heap
        self.cost = 0

    def charge(self, held: int) -> bool:
        """Tell how many bytes the session holds now; past its share it costs more of the heap.

        The bytes are there already, so this never waits and never refuses. False means that the heap is
        overdrawn: nothing starts until it is not, and the session should shorten what it holds.
        """
        return self._heap._charge(self, held)


class SessionHeap:
    """A bounded heap for sessions. `total` and `share` are bytes; a share must fit into the total."""

    def __init__(self, total: int, share: int) -> None:
        if not 0 < share <= total:
            raise ValueError(f"a session's share ({share} bytes) must be above 0 and within the heap ({total} bytes)")
        self._total = total
        self._share = share
        self._used = 0
        self._rooms: set[Room] = set()
        self._waiting: deque[tuple[Room, anyio.Event]] = deque()
        self._peak_used = 0
        self._peak_sessions = 0

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Room]:
        """Room for one session. Waits for its turn; gives everything back however the block is left."""
        room = await self._acquire()
        try:
            yield room
        finally:
            self._release(room)

    def statistics(self) -> HeapStatistics:
        """The figures of this moment."""
        return HeapStatistics(
            total=self._total,
            share=self._share,
            used=self._used,
            sessions=len(self._rooms),
            waiting=len(self._waiting),
            peak_used=self._peak_used,
            peak_sessions=self._peak_sessions,
        )

    async def _acquire(self) -> Room:
        room = Room(self)
        turn = anyio.Event()
        self._waiting.append((room, turn))
        self._admit()
        try:
            await turn.wait()
        except BaseException:
            # A waiter that was let in and cancelled in the same moment gives its room back.
            if turn.is_set():
                self._release(room)
            else:
                self._waiting.remove((room, turn))
            raise
        return room

    def _admit(self) -> None:
        while self._waiting and self._used + self._share <= self._total:
            room, turn = self._waiting.popleft()
            self._rooms.add(room)
            self._set_cost(room, self._share)
            self._peak_sessions = max(self._peak_sessions, len(self._rooms))
            turn.set()

    def _charge(self, room: Room, held: int) -> bool:
        if room not in self._rooms:
            raise ValueError("this session has given its room back")
        self._set_cost(room, max(self._share, held))
        self._admit()
        return self._used <= self._total

    def _release(self, room: Room) -> None:
        self._rooms.remove(room)
        self._set_cost(room, 0)
        self._admit()

    def _set_cost(self, room: Room, cost: int) -> None:
        self._used += cost - room.cost
        room.cost = cost
        self._peak_used = max(self._peak_used, self._used)
