"""A gateway's archive for tests, in this process: it breaks, changes and lies where it is told to."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import anyio

from driver.errors import GatewayError, GatewayUnavailable
from driver.gateway.archive import ArchiveStream, filling


@dataclass
class Answer:
    """How one request is answered. Positions are absolute in the archive.

    `stop` is where the transfer breaks, or with `short` ends quietly; None is the end.
    """

    data: bytes
    etag: str | None = '"one"'
    stop: int | None = None
    short: bool = False
    resumes: bool = True
    offset: int | None = None
    length: int | None = -1
    digest: str | None = None
    error: GatewayError | None = None
    hold: anyio.Event | None = None


@dataclass
class Source:
    """Answers requests in the given order; the last answer is repeated. `asked` is what was requested."""

    answers: list[Answer]
    chunk: int = 1000
    asked: list[tuple[int, str | None]] = field(default_factory=list)
    open: int = 0

    def __call__(self, offset: int, etag: str | None) -> AbstractAsyncContextManager[ArchiveStream]:
        answer = self.answers[min(len(self.asked), len(self.answers) - 1)]
        self.asked.append((offset, etag))
        return self._open(answer, offset, etag)

    @asynccontextmanager
    async def _open(self, answer: Answer, offset: int, etag: str | None) -> AsyncIterator[ArchiveStream]:
        if answer.error is not None:
            raise answer.error
        begin = offset if answer.resumes and etag == answer.etag else 0
        begin = begin if answer.offset is None else answer.offset
        length = len(answer.data) if answer.length == -1 else answer.length
        chunks = self._chunks(answer, begin)
        self.open += 1
        try:
            yield ArchiveStream(begin, answer.etag, length, answer.digest, filling(chunks))
        finally:
            self.open -= 1
            await chunks.aclose()  # type: ignore[attr-defined]  # it is a generator

    async def _chunks(self, answer: Answer, at: int) -> AsyncIterator[bytes]:
        end = len(answer.data) if answer.stop is None else answer.stop
        while at < end:
            yield answer.data[at : min(at + self.chunk, end)]
            at += self.chunk
        if answer.hold is not None:
            await answer.hold.wait()
        if answer.stop is not None and not answer.short:
            raise GatewayUnavailable("the connection was reset")


class HandClock:
    """A driver.clock.Clock that only moves when somebody sleeps on it or moves it."""

    def __init__(self) -> None:
        self.time = 100.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return 1_764_456_000.0 + self.time

    async def sleep_until(self, moment: float) -> None:
        await self.sleep(moment - self.time)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += max(seconds, 0)
        await anyio.lowlevel.checkpoint()
