"""Downloading the workspace archive and unpacking it on the way, with resume.

A transfer that breaks goes on at the byte where it stopped, as long as it is the same representation (RFC
9110, sections 13.1.5 and 14). One worker thread receives and hashes, another one unpacks; what is received and not
unpacked yet has a bound, so a slow disk slows the gateway down.
"""

import hashlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

import anyio
from anyio import from_thread, to_thread

from driver.clock import Clock
from driver.errors import ArchiveRefused, ContractError, GatewayRefused, GatewayUnavailable, TransferFailed
from driver.gateway.archive import ArchiveStream
from driver.layout import Layout
from driver.log import Log
from driver.workspace.empty import empty
from driver.workspace.extract import Extractor, sha256_field
from driver.workspace.pieces import Pieces
from driver.workspace.tar_reader import TarLimits

_PIECES: Final = 4
_PIECE_BYTES: Final = 2 * 1024 * 1024
_IDLE_TRIES: Final = 32
"""Tries in a row that may bring nothing new. With back-off they outlast a gateway that restarts."""
_PROGRESS_SECONDS: Final = 2.0
_CLOSE_SECONDS: Final = 10.0


OpenArchive = Callable[[int, str | None], AbstractAsyncContextManager[ArchiveStream]]
"""Asks for the archive from an offset on, if it still has that ETag. Opening raises GatewayErrors.

Leaving the context closes the transfer, read to its end or not.
"""


@dataclass(frozen=True)
class Promise:
    """What Runtime says about the archive: its most bytes, and its digest as `sha-256=:...:`."""

    bytes: int
    digest: str


class _WrongArchive(TransferFailed):
    """The archive is not the promised one."""


class Fetch:
    """One download. `run` once, on an empty workspace; a failure leaves the workspace to be emptied."""

    def __init__(
        self,
        layout: Layout,
        promise: Promise,
        open_archive: OpenArchive,
        *,
        log: Log,
        clock: Clock,
        pauses: Callable[[int], float],
    ) -> None:
        self._layout = layout
        self._promise = promise
        self._open_archive = open_archive
        self._log = log
        self._clock = clock
        self._pauses = pauses
        self._extractor: Extractor | None = None
        self._sha256 = hashlib.sha256()
        self._offset = 0
        self._etag: str | None = None
        self._length: int | None = None
        self._furthest = 0
        self._reported = 0.0

    async def run(self) -> None:
        """Download, verify and unpack.

        Raises ArchiveRefused, TransferFailed, WorkspaceError, or the GatewayError of a call that will never
        work. `pauses(n)` gives the seconds to wait before the try after the nth idle one, n from 1.
        """
        began = self._reported = self._clock.now()
        try:
            await self._open_extractor()
            extractor = await self._download_promised()
            await to_thread.run_sync(extractor.publish)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_SECONDS):
                await self._close_extractor()
        seconds = round(self._clock.now() - began, 3)
        self._log.info("workspace.unpacked", bytes=extractor.bytes, files=extractor.files, seconds=seconds)

    async def _download_promised(self) -> Extractor:
        """Download until the digest is the promised one; a wrong one gets a single clean restart."""
        for may_restart in (True, False):
            try:
                extractor = await self._transfer()
                digest = sha256_field(self._sha256.digest())
                if digest == self._promise.digest:
                    return extractor
                raise _WrongArchive(
                    f"the archive of {self._offset:,} bytes has the digest {digest}, "
                    f"promised was {self._promise.digest}"
                )
            except _WrongArchive as error:
                if not may_restart:
                    raise TransferFailed(f"{error}, twice") from error
                self._log.warning("workspace.restarted", reason=str(error))
                await self._restart()
                self._furthest = 0
        raise AssertionError("the second try returns or raises")

    async def _transfer(self) -> Extractor:
        """Hand all bytes of the archive to the extractor, in as many tries as it takes."""
        idle = 0
        while True:
            before = self._furthest
            try:
                await self._one_try()
            except GatewayUnavailable as error:
                if self._offset == self._length:
                    break
                idle = 0 if self._furthest > before else idle + 1
                await self._pause(idle, error)
            else:
                break
        return self._unpacking()

    async def _pause(self, idle: int, error: GatewayUnavailable) -> None:
        if idle >= _IDLE_TRIES:
            raise TransferFailed(
                f"the archive could not be had: {idle} tries in a row brought nothing after byte "
                f"{self._furthest:,} (the last: {error})"
            ) from error
        self._log.warning("workspace.interrupted", bytes=self._offset, total=self._length, reason=str(error))
        await self._clock.sleep(max(self._pauses(max(idle, 1)), error.retry_after or 0.0))

    async def _one_try(self) -> None:
        if self._etag is None and self._offset:
            # Without an ETag nobody can tell whether the rest would be of the same archive.
            await self._restart()
        asked = self._offset
        try:
            async with self._open_archive(asked, self._etag) as stream:
                await self._align(stream)
                await self._pump(stream)
        except (ContractError, GatewayRefused) as error:
            if not asked or not _of_the_range(error):
                raise
            # Nothing is asked for but the whole from now on, until that breaks too.
            self._log.warning("workspace.restarted", reason=str(error))
            await self._restart()
            raise GatewayUnavailable(f"the gateway cannot go on at byte {asked:,} ({error})") from error
        if self._length is not None and self._offset < self._length:
            raise GatewayUnavailable(f"the transfer ended at byte {self._offset:,} of {self._length:,}")

    async def _align(self, stream: ArchiveStream) -> None:
        """Make sure that what was unpacked so far and this stream are parts of one archive."""
        if stream.length is not None and stream.length > self._promise.bytes:
            raise ArchiveRefused(
                f"the archive has {stream.length:,} bytes, more than the advertised {self._promise.bytes:,}"
            )
        if stream.offset not in (0, self._offset):
            raise ContractError(f"workspace: asked for bytes from {self._offset:,}, got them from {stream.offset:,}")
        etag = None if stream.etag is None or stream.etag.startswith("W/") else stream.etag
        if self._offset and (stream.offset == 0 or etag != self._etag):
            reason = "the gateway could not resume" if etag == self._etag else "the archive has changed"
            self._log.warning("workspace.restarted", reason=reason)
            await self._restart()
            if stream.offset:
                raise GatewayUnavailable("the archive has changed during its transfer")
        self._etag, self._length = etag, stream.length
        if (digest := _sha256_member(stream.digest)) not in (None, self._promise.digest):
            raise _WrongArchive(f"the gateway sends an archive with the digest {digest}, not {self._promise.digest}")

    async def _pump(self, stream: ArchiveStream) -> None:
        """Receive and hash in one thread and unpack in another; what came before a break is not lost."""
        pieces = Pieces(_PIECES, _PIECE_BYTES)
        failures: list[Exception] = []

        def receive(buffer: memoryview, check: Callable[[], None]) -> int:
            size = stream.fill(buffer, check)
            self._sha256.update(buffer[:size])
            return size

        async def give() -> None:
            try:
                await to_thread.run_sync(pieces.give_all, receive, from_thread.check_cancelled)
            except Exception as error:
                failures.append(error)
            finally:
                pieces.end()

        async def take() -> None:
            try:
                await to_thread.run_sync(pieces.take_all, self._unpack)
            except Exception as error:
                failures.insert(0, error)
                tasks.cancel_scope.cancel("nothing more is wanted")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            tasks.start_soon(give)
        if failures:
            raise failures[0]

    def _unpack(self, piece: memoryview) -> None:
        extractor = self._unpacking()
        if self._length is not None and self._offset + len(piece) > self._length:
            raise ArchiveRefused(f"the archive goes on after the {self._length:,} bytes that its digest covers")
        extractor.feed(piece)
        self._offset += len(piece)
        self._furthest = max(self._furthest, self._offset)
        self._report(extractor)

    def _report(self, extractor: Extractor) -> None:
        now = self._clock.now()
        if now - self._reported >= _PROGRESS_SECONDS:
            self._reported = now
            self._log.info("workspace.progress", bytes=self._offset, files=extractor.files, total=self._length)

    async def _restart(self) -> None:
        await self._close_extractor()
        await to_thread.run_sync(empty, self._layout.root, from_thread.check_cancelled)
        self._offset, self._etag, self._length = 0, None, None
        self._sha256 = hashlib.sha256()
        await self._open_extractor()

    async def _open_extractor(self) -> None:
        limits = TarLimits(bytes=self._promise.bytes)
        self._extractor = await to_thread.run_sync(Extractor, self._layout, limits, from_thread.check_cancelled)

    async def _close_extractor(self) -> None:
        extractor, self._extractor = self._extractor, None
        if extractor is not None:
            await to_thread.run_sync(extractor.close)

    def _unpacking(self) -> Extractor:
        assert self._extractor is not None, "an extractor is open while a download runs"
        return self._extractor


def _of_the_range(error: ContractError | GatewayRefused) -> bool:
    """Whether asking for a part can be what is wrong: another part came, or 416 (RFC 9110, section 15.5.17)."""
    return isinstance(error, ContractError) or error.status == 416


def _sha256_member(field: str | None) -> str | None:
    """The SHA-256 in a Repr-Digest field, which may hold other digests too."""
    members = (member.strip() for member in (field or "").split(","))
    return next((member for member in members if member.startswith("sha-256=")), None)
