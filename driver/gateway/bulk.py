"""An httpx transport for downloads of hundreds of MiB: bodies come in pieces of 2 MiB, received where they will lie.

httpx's own reads 64 KiB at a time through three layers; that alone takes as long as writing the files.
"""

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Final

import anyio
import httpx

from driver.http1.client import Call, CallTimeouts, Client, Response, ServerUnreachable
from driver.http1.server_connection import ServerBroke

PIECE_BYTES: Final = 2 * 1024 * 1024
_PIECE_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 2.0
_ADDED: Final = frozenset({"host", "content-length"})


class BulkTransport(httpx.AsyncBaseTransport):
    """Carries requests without a body to one server. `verify` is what https is verified with."""

    def __init__(self, url: str, verify: ssl.SSLContext | bool) -> None:
        parts = httpx.URL(url)
        origin = f"{parts.scheme}://{parts.netloc.decode('ascii')}"
        self._client = Client(origin, tls=verify if isinstance(verify, ssl.SSLContext) else None)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request; the body of the response is read when it is iterated. Raises httpx.TransportError."""
        timeout = request.extensions["timeout"]
        headers = [(name.lower(), value) for name, value in request.headers.items() if name.lower() not in _ADDED]
        call = Call(request.method, request.url.raw_path.decode("ascii"), headers)
        timeouts = CallTimeouts(timeout["connect"], send=timeout["write"], head=timeout["read"])
        stack = AsyncExitStack()
        try:
            response = await stack.enter_async_context(self._client.call(call, timeouts, before=lambda: None))
        except ServerUnreachable as error:
            raise httpx.ConnectError(str(error), request=request) from error
        except TimeoutError as error:
            raise httpx.ReadTimeout("no answer in time", request=request) from error
        except ServerBroke as error:
            raise httpx.RemoteProtocolError(str(error), request=request) from error
        body = _Body(response, stack, timeout["read"])
        return httpx.Response(response.status, headers=response.headers, stream=body, request=request)

    async def aclose(self) -> None:
        await self._client.aclose()


class _Body(httpx.AsyncByteStream):
    def __init__(self, response: Response, stack: AsyncExitStack, seconds: float | None) -> None:
        self._response = response
        self._stack = stack
        self._seconds = seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Pieces of 2 MiB, or of what came in a second. What came before a break is given before it is raised."""
        while True:
            piece, filled, came = bytearray(PIECE_BYTES), 0, -1
            broke: httpx.TransportError | None = None
            until = anyio.current_time() + _PIECE_SECONDS
            try:
                with memoryview(piece) as view:
                    while came and filled < PIECE_BYTES and (not filled or anyio.current_time() < until):
                        came = await self._receive_into(view[filled:])
                        filled += came
            except httpx.TransportError as error:
                broke = error
            if filled:
                # A buffer that an error still points into cannot be made shorter.
                yield piece if filled == PIECE_BYTES else piece[:filled]  # type: ignore[misc]  # as good as bytes
            if broke is not None:
                raise broke
            if not came:
                return

    async def _receive_into(self, buffer: memoryview) -> int:
        try:
            return await self._response.receive_into(buffer, self._seconds)
        except TimeoutError as error:
            raise httpx.ReadTimeout("the server sent nothing for too long") from error
        except ServerBroke as error:
            raise httpx.ReadError(str(error)) from error

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_SECONDS):
            await self._stack.aclose()
