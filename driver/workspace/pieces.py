"""Buffers that go round between two threads: one fills them, the other takes what is in them, in order."""

from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

_LOOK_SECONDS: Final = 0.1

Check = Callable[[], None]
Fill = Callable[[memoryview, Check], int]


class Pieces:
    """One way of bytes from thread to thread; used once. No more than `count` buffers of `size` bytes are ever held."""

    def __init__(self, count: int, size: int) -> None:
        self._free: SimpleQueue[bytearray] = SimpleQueue()
        self._full: SimpleQueue[tuple[bytearray, int] | None] = SimpleQueue()
        for _ in range(count):
            self._free.put(bytearray(size))

    def give_all(self, fill: Fill, check: Check) -> None:
        """Fill one buffer after the other until `fill` puts nothing into one.

        `check` is called while this waits, ten times in a second, and may raise; `fill` gets it too. What was filled
        before an error is taken.
        """
        try:
            while size := fill(memoryview(buffer := self._next_free(check)), check):
                self._full.put((buffer, size))
        finally:
            self.end()

    def end(self) -> None:
        """Nothing more is given. To be called as well where `give_all` may not have begun; may be called again."""
        self._full.put(None)

    def take_all(self, take: Callable[[memoryview], None]) -> None:
        """Give each piece to `take`, until the other thread has ended. A piece is valid within its call only."""
        while (piece := self._full.get()) is not None:
            buffer, size = piece
            take(memoryview(buffer)[:size])
            self._free.put(buffer)

    def _next_free(self, check: Check) -> bytearray:
        while True:
            try:
                return self._free.get(timeout=_LOOK_SECONDS)
            except Empty:
                check()
