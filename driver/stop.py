"""A stop of the driver: asked for by SIGTERM or SIGINT, bounded by the grace, hurried by a second signal."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio
from anyio.abc import TaskStatus

from driver.clock import Clock
from driver.log import Log

HURRIED_SECONDS: Final = 2.0


class Stop:
    """Whether and until when the driver is to stop. Asking is synchronous; everything else waits on it."""

    def __init__(self, grace: float, clock: Clock) -> None:
        self.grace = grace
        self._clock = clock
        self._asked = anyio.Event()
        self._hurried = anyio.Event()
        self._ends_at: float | None = None
        self._sections: dict[anyio.CancelScope, float] = {}

    @property
    def asked(self) -> bool:
        return self._ends_at is not None

    @property
    def hurried(self) -> bool:
        return self._hurried.is_set()

    @property
    def ends_at(self) -> float | None:
        """The moment by which the driver will be gone, or None while nobody asked it to stop."""
        return self._ends_at

    def ask(self) -> None:
        """The first time: stop within the grace. From the second on: within two seconds."""
        now = self._clock.now()
        if self._ends_at is None:
            self._ends_at = now + self.grace
            self._asked.set()
            for section, after in self._sections.items():
                section.deadline = anyio.current_time() + after
        else:
            self._ends_at = min(self._ends_at, now + HURRIED_SECONDS)
            self._hurried.set()

    async def wait_asked(self) -> None:
        await self._asked.wait()

    async def wait_hurried(self) -> None:
        await self._hurried.wait()

    async def wait_end(self) -> None:
        """Return when the grace is over."""
        await self._asked.wait()
        while (ends_at := self._ends_at) is not None and (now := self._clock.now()) < ends_at:
            # A second signal may bring the end nearer while this waits.
            await self._clock.sleep_until(min(ends_at, now + HURRIED_SECONDS / 2))

    @contextmanager
    def interrupts(self, after: float = 0.0) -> Iterator[None]:
        """A section that a stop leaves `after` seconds later, quietly."""
        with anyio.CancelScope() as scope:
            if self.asked:
                scope.deadline = anyio.current_time() + after
            self._sections[scope] = after
            try:
                yield
            finally:
                del self._sections[scope]


async def listen(stop: Stop, log: Log, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Turn SIGTERM and SIGINT into `stop.ask`, until cancelled; started once the handlers are installed."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            stop.ask()
            log.info("driver.stopping", signal=signal.Signals(number).name, hurried=stop.hurried)
