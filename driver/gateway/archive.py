"""The workspace archive as a transfer: where it starts, what it should be, and its bytes."""

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

import httpx

from driver.errors import ContractError, GatewayUnavailable
from driver.http1.looped import on_the_loop

_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")


Fill = Callable[[memoryview, Callable[[], None]], int]
"""Puts the next bytes at the beginning of a buffer: how many, 0 at the end.

It blocks, and is called in a worker thread of anyio. While it waits it calls what it is given ten times in a second,
which may raise.
"""


@dataclass(frozen=True)
class ArchiveStream:
    """One transfer of the archive.

    `offset` is where it really starts: 0 where the gateway could not resume. `length` is the size of the whole
    archive in bytes, `digest` its `Repr-Digest` (RFC 9530). `fill` raises GatewayUnavailable when the transfer breaks,
    once it has given all that came before.
    """

    offset: int
    etag: str | None
    length: int | None
    digest: str | None
    fill: Fill


def open_archive(response: httpx.Response, *, asked_offset: int) -> ArchiveStream:
    """The transfer that a 200 or 206 answer holds (RFC 9110, 14.4 and 15.3.7).

    A 206 for another range than the one that was asked for raises ContractError.
    """
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ContractError("workspace: came in an encoding that was not asked for")
    etag = response.headers.get("etag")
    length = response.headers.get("content-length")
    total = int(length) if length is not None else None
    offset = 0
    if response.status_code == 206:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        if not match or int(match[1]) != asked_offset or int(match[2]) != int(match[3]) - 1:
            raise ContractError("workspace: the 206 holds another range than the one that was asked for")
        offset, total = asked_offset, int(match[3])
    return ArchiveStream(
        offset=offset,
        etag=etag if etag and not etag.startswith("W/") else None,
        length=total,
        digest=response.headers.get("repr-digest"),
        fill=response.extensions.get("fill") or filling(_chunks(response)),
    )


def filling(chunks: AsyncIterator[bytes]) -> Fill:
    """The same for bytes that come on the event loop. A cancel reaches the loop, so nothing has to be called."""
    rest = b""

    def fill(buffer: memoryview, _: Callable[[], None]) -> int:
        nonlocal rest
        rest = rest or on_the_loop(_next, chunks)
        size = min(len(rest), len(buffer))
        buffer[:size], rest = rest[:size], rest[size:]
        return size

    return fill


async def _next(chunks: AsyncIterator[bytes]) -> bytes:
    return await anext(chunks, b"")


async def _chunks(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_raw():
            yield chunk
    except httpx.HTTPError as error:
        raise GatewayUnavailable(f"workspace: the transfer broke off ({type(error).__name__})") from error
