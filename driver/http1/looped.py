"""What a worker thread has done on the event loop that started it."""

import math
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from typing import TypeVar, TypeVarTuple

import anyio
from anyio import from_thread

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def on_the_loop(function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
    """The result of a coroutine function, awaited on the loop. For worker threads of anyio; raises what it raises.

    A cancel of whoever waits for the thread cancels that too, and comes out as a cancel: as anyio brings it into the
    thread, it is an Exception, which would be taken for a failure.
    """

    async def unless_cancelled() -> T:
        # anyio cancels what is there when a cancel comes, and not what a thread begins after it.
        if anyio.current_effective_deadline() == -math.inf:
            raise CancelledError
        return await function(*args)

    try:
        return from_thread.run(unless_cancelled)
    except CancelledError:
        from_thread.check_cancelled()
        raise
