"""A run's workspace: emptied, then filled with the run's archive; or the one that stands there, used again."""

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
from driver.workspace.standing import Standing, changed, top_level

CLEAN_SECONDS: Final = 20.0
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 15.0


class RunWorkspace:
    """The driver.kind.Workspace of one run.

    `runtime` gives the run's Runtime, once it is needed. `standing` is what the process knows of the workspace from
    its runs before. Emptying after a failure takes at most `clean_seconds`.
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
        standing: Standing | None = None,
        clean_seconds: float = CLEAN_SECONDS,
    ) -> None:
        self._layout = layout
        self._runtime = runtime
        self._open_archive = open_archive
        self._log = log
        self._clock = clock
        self._rng = rng
        self._standing = standing or Standing()
        self._clean_seconds = clean_seconds

    @property
    def layout(self) -> Layout:
        return self._layout

    async def prepare(self) -> None:
        """Empty the workspace and unpack the run's archive into it.

        Raises ArchiveRefused, TransferFailed, another WorkspaceError or a GatewayError. Whenever it raises,
        also by a cancel, the workspace is empty; where that took too long or failed, the log says so.
        """
        self._standing.forget()
        try:
            await self._empty()
            runtime = await self._runtime()
            promise = Promise(runtime.workspace_bytes, runtime.workspace_digest)
            fetch = Fetch(
                self._layout, promise, self._open_archive, log=self._log, clock=self._clock, pauses=self._pause
            )
            await fetch.run()
            self._standing.note(runtime.workspace_digest, self._layout)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._clean_up()
            raise

    async def reuse_or_prepare(self) -> bool:
        """Keep the inputs where they are those of the run's archive, as unpacked; prepare() otherwise.

        True when they were kept; what programs left in `out/`, `work/` and `.sessions/` is gone either way.
        Raises, and leaves the workspace, as prepare() does.
        """
        runtime = await self._runtime()
        reason = await self._changed(runtime.workspace_digest)
        if reason is not None:
            self._log.info("workspace.not_reused", reason=reason)
            await self.prepare()
            return False
        self._standing.forget()
        began = self._clock.now()
        try:
            await to_thread.run_sync(self._empty_writable)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._clean_up()
            raise
        self._standing.digest = runtime.workspace_digest
        self._log.info("workspace.reused", seconds=round(self._clock.now() - began, 3))
        return True

    async def clear(self) -> None:
        """Empty the workspace and make the directories that programs may write.

        Raises WorkspaceError. Whenever it raises, also by a cancel, the workspace is empty as after prepare().
        """
        self._standing.forget()
        try:
            await self._empty()
            await to_thread.run_sync(self._empty_writable)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._clean_up()
            raise

    async def _changed(self, digest: str) -> str | None:
        """Why the workspace cannot be used again, or None when it can."""
        standing = self._standing
        if standing.digest is None:
            return "this driver has prepared none"
        if standing.digest != digest:
            return "it is of another archive"
        found = await to_thread.run_sync(changed, self._layout, standing, from_thread.check_cancelled)
        return None if found is None else f"its inputs were changed: {found}"

    def _empty_writable(self) -> None:
        for directory in top_level(self._layout):
            empty(directory, from_thread.check_cancelled)
        try:
            for directory in self._layout.writable:
                directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise WorkspaceError(f"the workspace {self._layout.root} cannot be written: {error.strerror}") from error

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
