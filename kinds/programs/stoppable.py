"""Work that ends at SIGTERM, and writes what it has whatever ends it."""

import signal
from collections.abc import Awaitable, Callable

import anyio

from driver.exits import ProgramExit
from kinds.programs import progress


async def stoppable(work: Callable[[], Awaitable[int]], write: Callable[[int], None]) -> int:
    """The exit of `work`, TERMINATED once SIGTERM came, or UNHANDLED when it raises.

    `write` is given the exit, writes the files, and may raise OSError: without its files there is no complete
    output. SIGTERM is blocked when this is called, so that one that came early is not lost.
    """
    exit: int = ProgramExit.UNHANDLED
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        try:
            exit = ProgramExit.TERMINATED
            async with anyio.create_task_group() as tasks:

                async def stop() -> None:
                    async for _ in signals:
                        progress.say("asked to stop; writing what there is")
                        tasks.cancel_scope.cancel()

                tasks.start_soon(stop)
                exit = await work()
                tasks.cancel_scope.cancel()
        finally:
            exit = _written(exit, write)
    return exit


def _written(exit: int, write: Callable[[int], None]) -> int:
    try:
        write(exit)
    except OSError as error:
        progress.say(f"the result cannot be written: {error}")
        return exit or ProgramExit.NO_OUTPUT
    return exit
