"""One method for each call of docs/protocol.md about a run; each is one try.

Renewals have connections of their own, so that no upload or slow call can delay one.
"""

import base64
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import BinaryIO, Final

import anyio
import httpx
from anyio import to_thread

from driver.errors import ClaimLost, GatewayUnavailable
from driver.gateway.answer import ANSWER_SECONDS, Answer
from driver.gateway.archive import ArchiveStream, open_archive
from driver.gateway.transport import Transport
from driver.gateway.wire import Context, End, EndResult, Lease, Run, Runtime

HEAD_LEAVES: Final = "http11.send_request_headers.started"
_UPLOAD_SLICE: Final = 256 * 1024
_FIRST_CALL_SECONDS: Final = 120.0


class GatewayClient:
    """The calls about runs. An async context manager: its connections are closed with it.

    `on_answer` is called for each answer that came, whatever it says. `network`, if it is given, carries the
    requests in place of sockets.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        verify: ssl.SSLContext | bool,
        on_answer: Callable[[], None] = lambda: None,
        network: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._transport = Transport(url, token, verify=verify, on_answer=on_answer, network=network)

    async def __aenter__(self) -> "GatewayClient":
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._transport.__aexit__(*exc_info)

    def for_run(self, run: Run, guard: Callable[[], None]) -> "RunCalls":
        """The calls about one claimed run. `guard` is called right before each of them but a renewal is sent."""
        return RunCalls(self._transport, run, guard)


class RunCalls:
    """The calls about one run, under its claim."""

    def __init__(self, transport: Transport, run: Run, guard: Callable[[], None]) -> None:
        self._transport = transport
        self._guard = guard
        self._path = f"runs/{run.id}/"
        self._headers = claim_headers(run)

    async def renew(self, *, seconds: float) -> Lease:
        """`POST renew`; the whole try takes at most `seconds`."""
        client = self._transport.renewals
        request = client.build_request("POST", self._path + "renew", headers=self._headers, json={})
        return (await self._transport.answer(client, request, "renew", seconds=seconds)).parse(Lease, "renew")

    async def context(self) -> Context:
        """`GET context`. It can be the first call about the run, in which the gateway prepares the attempt."""
        answer = await self._get("context")
        # A conversation's facts come to megabytes, which are parsed in more time than the event loop has.
        return await to_thread.run_sync(answer.parse, Context, "context")

    async def runtime(self) -> Runtime:
        """`GET runtime`."""
        return (await self._get("runtime")).parse(Runtime, "runtime")

    @asynccontextmanager
    async def workspace(self, offset: int, etag: str | None) -> AsyncIterator[ArchiveStream]:
        """`GET runtime/workspace`, from `offset` while the archive is still the one with `etag`."""
        self._guard()
        headers = dict(self._headers)
        if offset and etag:
            headers |= {"range": f"bytes={offset}-", "if-range": etag}
        request = self._transport.downloads.build_request("GET", self._path + "runtime/workspace", headers=headers)
        request.extensions["guard"] = self._guard
        async with self._transport.stream(request, "workspace") as response:
            yield open_archive(response, asked_offset=offset)

    async def result(self, content: BinaryIO, size: int, digest: str, exit: int, *, seconds: float) -> None:
        """`POST runtime/result`: returns once the gateway confirmed `digest` (`sha-256=:...:`), in `seconds`.

        Raises ClaimLost for a 409 that does not confirm it, GatewayUnavailable for any other answer that
        does not. `content` is read from its start in each try.
        """
        self._guard()
        headers = {
            **self._headers,
            "content-type": "application/x-tar",
            "content-length": str(size),
            "content-digest": digest,
            "x-agent-exit": str(exit),
        }
        client = self._transport.uploads
        body = _slices(content, self._guard)
        request = client.build_request("POST", self._path + "runtime/result", headers=headers, content=body)
        request.extensions["trace"] = self._look
        # What confirms stands in the head: a body that breaks, never ends or is too large takes nothing from it.
        answer = await self._transport.answer(client, request, "result", seconds=seconds, also=(409,), head_only=True)
        if confirms(answer.headers.get("etag"), digest):
            return
        if answer.status == 409:
            raise ClaimLost("result: 409 without the digest that was sent")
        raise GatewayUnavailable("result: the answer does not confirm the digest that was sent")

    async def end(self, end: End, *, seconds: float = ANSWER_SECONDS) -> EndResult:
        """`POST end`; the whole try takes at most `seconds`. A repeat reads ALREADY_ENDED, which is a success."""
        self._guard()
        data = end.model_dump_json().encode()
        headers = {**self._headers, "content-type": "application/json"}
        client = self._transport.control
        request = client.build_request("POST", self._path + "end", headers=headers, content=data)
        request.extensions["trace"] = self._look
        return (await self._transport.answer(client, request, "end", seconds=seconds)).parse(EndResult, "end")

    async def _get(self, call: str) -> Answer:
        self._guard()
        client = self._transport.control
        request = client.build_request("GET", self._path + call, headers=self._headers)
        request.extensions["trace"] = self._look
        return await self._transport.answer(client, request, call, seconds=_FIRST_CALL_SECONDS)

    async def _look(self, event: str, _: object) -> None:
        """Guard the first byte of a request, for a connection may take long; httpcore tells each step of it here."""
        if event == HEAD_LEAVES:
            self._guard()


def claim_headers(run: Run) -> dict[str, str]:
    """The headers that name the claim in each call about a run."""
    return {"x-agent-run": run.id, "x-agent-epoch": str(run.epoch)}


def confirms(etag: str | None, digest: str) -> bool:
    """Whether a strong ETag is the digest `sha-256=:base64:` that was sent, in this form or in hex."""
    encoded = digest.removeprefix("sha-256=:").removesuffix(":")
    return etag in (f'"{digest}"', f'"{base64.b64decode(encoded).hex()}"')


async def _slices(content: BinaryIO, guard: Callable[[], None]) -> AsyncIterator[bytes]:
    """A fresh body from the start of `content`; a claim that falls into doubt stops it in mid-upload."""
    content.seek(0)
    while data := await anyio.to_thread.run_sync(content.read, _UPLOAD_SLICE):
        guard()
        yield data
