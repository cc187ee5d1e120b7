"""Time as the driver sees it: one clock that also counts suspended time.

CLOCK_BOOTTIME (clock_gettime(2)) goes on while the sandbox is suspended and is not moved by wall-clock
steps, so a lease that ran out during a suspend is seen as over on waking.
"""

import time
from typing import Protocol

import anyio

# A timer of the event loop stands still while the machine is suspended (CLOCK_MONOTONIC), so no sleep
# may be longer than what a late waking can be tolerated by.
_LONGEST_SLEEP = 1.0


class Clock(Protocol):
    """What the driver asks of time. Tests and the simulation give their own."""

    def now(self) -> float:
        """Seconds since an arbitrary start, suspended time included."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, for log lines and HTTP dates only."""
        ...

    async def sleep_until(self, moment: float) -> None:
        """Return once `now()` has reached `moment`."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return once that many seconds have passed on this clock."""
        ...


class BootClock:
    """The real clock."""

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        return time.time()

    async def sleep_until(self, moment: float) -> None:
        while (left := moment - self.now()) > 0:  # noqa: ASYNC110 # time is what it waits for
            await anyio.sleep(min(left, _LONGEST_SLEEP))

    async def sleep(self, seconds: float) -> None:
        await self.sleep_until(self.now() + seconds)
