"""Time for tests: an event loop whose clock jumps to the next timer as soon as nothing else is left to do.

A test of minutes runs in milliseconds, and its timings are exact. Only for code that waits for timers, for other
tasks and, after `wait_for_threads`, for worker threads; a socket of another process would never be waited for.
"""

import asyncio
import selectors
from collections.abc import Callable, Mapping
from selectors import SelectorKey

from anyio import to_thread

_THREAD_SECONDS = 0.01
# Less than this could be lost in the rounding of the loop's time, which then would never move.
_LEAST_SECONDS = 1e-6


class _JumpingSelector(selectors.DefaultSelector):
    """Never blocks but for a worker thread: the time that it should wait for passes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.busy: Callable[[], bool] = lambda: False

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        ready = super().select(0)
        while not ready and timeout != 0 and self.busy():
            ready = super().select(_THREAD_SECONDS)
        if not ready and timeout is None:
            raise AssertionError("nothing is left that could ever happen")
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time."""

    def __init__(self) -> None:
        self.jumping = _JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now


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
            await asyncio.sleep(max(min(left, 1.0), _LEAST_SECONDS))

    async def sleep(self, seconds: float) -> None:
        await self.sleep_until(self.now() + seconds)

    def step(self, seconds: float) -> None:
        """Somebody has set the wall clock."""
        self._wall += seconds

    def suspend(self, seconds: float) -> None:
        """The machine was suspended: boot time went on, no timer of the loop did."""
        self._suspended += seconds


def wait_for_threads() -> None:
    """From now on no time passes in the running loop while `to_thread.run_sync` has a worker at work."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    limiter = to_thread.current_default_thread_limiter()
    loop.jumping.busy = lambda: limiter.borrowed_tokens > 0


BACKEND: tuple[str, Mapping[str, object]] = ("asyncio", {"loop_factory": VirtualLoop})
