"""A run's workspace: emptied, then filled with the run's archive."""

import random
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from anyio import from_thread, to_thread

from driver.clock import Clock
from driver.errors import WorkspaceError
from driver.gateway.wire import Runtime
from driver.layout import Layout
from driver.log import Log
from driver.workspace.empty import empty
from driver.workspace.fetch import Fetch, OpenArchive, Promise

CLEAN_SECONDS: Final = 20.0
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 15.0


class RunWorkspace:
    """The driver.kind.Workspace of one run.

    `runtime` gives the run's Runtime, once it is needed. Emptying after a failure takes at most
    `clean_seconds`.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        runtime: Callable[[], Awaitable[Runtime]],
        open_archive: OpenArchive,
        log: Log,
        clock: Clock,
        rng: random.Random,
        clean_seconds: float = CLEAN_SECONDS,
    ) -> None:
        self._layout = layout
        self._runtime = runtime
        self._open_archive = open_archive
        self._log = log
        self._clock = clock
        self._rng = rng
        self._clean_seconds = clean_seconds

    @property
    def layout(self) -> Layout:
        return self._layout

    async def prepare(self) -> None:
        """Empty the workspace and unpack the run's archive into it.

        Raises ArchiveRefused, TransferFailed, another WorkspaceError or a GatewayError. Whenever it raises,
        also by a cancel, the workspace is empty; where that took too long or failed, the log says so.
        """
        try:
            await self._empty()
            runtime = await self._runtime()
            promise = Promise(runtime.workspace_bytes, runtime.workspace_digest)
            fetch = Fetch(
                self._layout, promise, self._open_archive, log=self._log, clock=self._clock, pauses=self._pause
            )
            await fetch.run()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._clean_up()
            raise

    async def _empty(self) -> None:
        began = self._clock.now()
        await to_thread.run_sync(empty, self._layout.root, from_thread.check_cancelled)
        self._log.info("workspace.emptied", seconds=round(self._clock.now() - began, 3))

    async def _clean_up(self) -> None:
        # The worker looks at this scope itself, so it has stopped when the scope ends.
        with anyio.move_on_after(self._clean_seconds) as scope:
            try:
                await to_thread.run_sync(empty, self._layout.root, from_thread.check_cancelled)
            except WorkspaceError as error:
                self._log.error("workspace.not_emptied", reason=str(error))
        if scope.cancelled_caught:
            self._log.error("workspace.not_emptied", reason=f"it took more than {self._clean_seconds:g} seconds")

    def _pause(self, tries: int) -> float:
        """Capped exponential back-off with full jitter, in seconds."""
        return self._rng.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (tries - 1)))
