"""What happened in the stub, in order: requests, answers and every move of a run or a sandbox.

Everything that wants to wait for something waits here: `wait_for` looks again each time an entry is added.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import anyio

_KEPT_ENTRIES: Final = 20_000


@dataclass(frozen=True)
class Entry:
    """One thing that happened. `number` counts from 1; `time` is of the gateway's clock."""

    number: int
    time: datetime
    event: str
    fields: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"number": self.number, "time": self.time.isoformat(), "event": self.event, **self.fields}


class Journal:
    """The newest 20,000 entries, and a way to wait for the next one."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._entries: deque[Entry] = deque(maxlen=_KEPT_ENTRIES)
        self._count = 0
        self._added = anyio.Event()

    @property
    def entries(self) -> list[Entry]:
        return list(self._entries)

    def record(self, event: str, **fields: Any) -> None:
        """Add an entry and wake everybody who waits. Never blocks."""
        self._count += 1
        self._entries.append(Entry(self._count, self._now(), event, fields))
        added, self._added = self._added, anyio.Event()
        added.set()

    def named(self, event: str, **fields: Any) -> list[Entry]:
        """The kept entries of that name that have these fields."""
        return [e for e in self._entries if e.event == event and fields.items() <= e.fields.items()]

    async def wait_for(self, predicate: Callable[[], bool]) -> None:
        """Return once `predicate()` is true; it is asked now and after each entry."""
        while not predicate():
            await self.wait_added()

    async def wait_added(self) -> None:
        """Return when the next entry is added."""
        await self._added.wait()

    async def follow(self, after: int = 0) -> AsyncIterator[Entry]:
        """Each entry past number `after`, the kept ones first; never ends."""
        while True:
            fresh = [entry for entry in self._entries if entry.number > after]
            for entry in fresh:
                after = entry.number
                yield entry
            if not fresh:
                await self.wait_added()
