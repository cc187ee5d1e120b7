"""Time for tests: an event loop whose clock jumps to the next timer as soon as nothing else is left to do.

A test of minutes runs in milliseconds, and its timings are exact. Only for code that waits for timers and for
other tasks; a socket of another process would never be waited for.
"""

import asyncio
import selectors
from collections.abc import Mapping
from selectors import SelectorKey


class _JumpingSelector(selectors.DefaultSelector):
    """Never blocks: the time that it should wait for passes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("nothing is left that could ever happen")
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class VirtualClock:
    """A driver.clock.Clock on the running VirtualLoop."""

    def __init__(self, wall: float = 1_764_456_000.0) -> None:
        self._suspended = 0.0
        self._wall = wall

    def now(self) -> float:
        return asyncio.get_running_loop().time() + self._suspended

    def wall(self) -> float:
        return self._wall + self.now()

    async def sleep_until(self, moment: float) -> None:
        while (left := moment - self.now()) > 0:  # noqa: ASYNC110 # time is what it waits for
            await asyncio.sleep(min(left, 1.0))

    async def sleep(self, seconds: float) -> None:
        await self.sleep_until(self.now() + seconds)

    def suspend(self, seconds: float) -> None:
        """The machine was suspended: boot time went on, no timer of the loop did."""
        self._suspended += seconds


BACKEND: tuple[str, Mapping[str, object]] = ("asyncio", {"loop_factory": VirtualLoop})
