"""Where a parsing step runs: here, or in a worker thread when it would hold the event loop up."""

from collections.abc import Callable
from typing import Final, TypeVar

import anyio.to_thread

T = TypeVar("T")

INLINE_BYTES: Final = 64 * 1024
"""A step over at most this many bytes takes less time than the way to a thread and back."""


async def in_step(size: int, work: Callable[[], T]) -> T:
    """The result of `work`, which reads `size` bytes. A cancelled step still waits for its worker to stop."""
    if size <= INLINE_BYTES:
        return work()
    return await anyio.to_thread.run_sync(work)
