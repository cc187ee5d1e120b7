"""Work on pieces in the order they come, while the next one is fetched."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

Give = Callable[[bytes], Awaitable[None]]


@asynccontextmanager
async def pipeline(take: Callable[[bytes], Awaitable[None]]) -> AsyncIterator[Give]:
    """Gives a function that hands a piece on to `take`, and waits only while an earlier one waits there already.

    When the block is left, also by an error of its own, `take` is done with everything that was given; only a cancel
    drops what waits. An error of `take` ends the block, and comes out as it is.
    """
    send, receive = anyio.create_memory_object_stream[bytes](1)
    failures: list[Exception] = []

    async def work() -> None:
        async with receive:
            try:
                async for piece in receive:
                    await take(piece)
            except Exception as error:
                failures.insert(0, error)
                tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        async with send:
            try:
                yield send.send
            except Exception as error:
                failures.append(error)
    if failures:
        raise failures[0]
