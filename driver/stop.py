"""A stop of the driver: asked for by SIGTERM or SIGINT, bounded by the grace, hurried by a second signal."""

import math
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio
from anyio.abc import TaskStatus

from driver.clock import Clock
from driver.log import Log

HURRIED_SECONDS: Final = 2.0
_STOP_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})
_MANY: Final = 4096


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

    async def wait_left(self, seconds: float) -> None:
        """Return when no more than that much of the grace is left, or at once when it is hurried."""
        await self._asked.wait()
        async with anyio.create_task_group() as tasks:

            async def hurry() -> None:
                await self._hurried.wait()
                tasks.cancel_scope.cancel("hurried")

            tasks.start_soon(hurry)
            await self._clock.sleep(self._left() - seconds)
            tasks.cancel_scope.cancel("no more is left")

    async def wait_end(self) -> None:
        """Return when the grace is over."""
        await self.wait_left(0.0)
        await self._clock.sleep(self._left())

    def _left(self) -> float:
        return math.inf if self._ends_at is None else self._ends_at - self._clock.now()

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
    """Turn SIGTERM and SIGINT into `stop.ask`, until cancelled; started once the handlers are installed.

    The handlers stay: a signal that comes later does nothing. With the default action it would change the exit
    code of a driver that is just about to end.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            for number in _STOP_SIGNALS:
                signal.signal(number, lambda *_: None)
                signal.siginterrupt(number, False)
            task_status.started()
            while True:
                await anyio.wait_readable(reader)
                for received in reader.recv(_MANY):
                    if received in _STOP_SIGNALS:
                        stop.ask()
                        log.info("driver.stopping", signal=signal.Signals(received).name, hurried=stop.hurried)
        finally:
            signal.set_wakeup_fd(-1)
