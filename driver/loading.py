"""What is imported when. A start is over when the first pull is out, and most of the driver is not needed for that.

1. Before anything else: `driver.handover`, for signals and token (driver.__main__).
2. Before the first pull: what `driver.start` and its modules import at their top: settings, log, hardening, gate,
   loop, the pull and its HTTP client, and the names of the kinds, from the metadata of what is installed.
3. While the first pull is out, in a thread: `driver.holding`, and by it everything that a run needs: door, workspace,
   programs, the messages and the other calls of the gateway, httpx and pydantic.
4. Then, in a thread, each kind.

A claim is not looked at before the third is there, and its kind not asked for before that was imported. A module of the
driver that cannot be imported is an internal fault right then (exit 70); a kind is told of and not offered any more
(driver.registry). tests/e2e/test_loading.py holds the list.
"""

import gc
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, NoReturn

import anyio
from anyio import to_thread

from driver.front import Front

if TYPE_CHECKING:
    from driver.holding import Holding

    Open = Callable[[Front], AbstractAsyncContextManager[Holding]]


class Loading:
    """Imports the rest of the driver once the first pull is out; used once."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._out = anyio.Event()
        self._holding: Holding | None = None
        self.ready = anyio.Event()
        """Set when runs can be held."""

    def begin(self) -> None:
        """The first pull is out. Can be called again."""
        self._out.set()

    async def run(self) -> NoReturn:
        """Load, then keep the rooms open until cancelled. Raises what an import of the driver's own raises."""
        await self._out.wait()
        open_holding = await to_thread.run_sync(_import_the_rest)
        async with open_holding(self._front) as self._holding:
            self.ready.set()
            await self._front.kinds.load(self._front.log)
            # What was imported stays to the end. A full collection that looks at it all again holds the loop up for
            # 16 ms.
            gc.freeze()
            gc.enable()  # driver.__main__ has turned it off
            await anyio.sleep_forever()
        raise AssertionError("sleeping for ever never ends")

    async def holding(self) -> "Holding":
        """What holds runs, once it is there."""
        await self.ready.wait()
        assert self._holding is not None
        return self._holding

    @property
    def unisolated(self) -> bool:
        """Whether a run has found that the network policy does not hold."""
        return self._holding is not None and self._holding.unisolated


def _import_the_rest() -> "Open":
    from driver.holding import open_holding

    return open_holding
