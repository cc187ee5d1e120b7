"""An httpx transport for downloads of hundreds of MiB: a worker thread receives them where they will lie.

httpx's own reads 64 KiB at a time through three layers; that alone takes as long as writing the files. A response has
the extension `fill` (driver.gateway.archive.Fill).
"""

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Final

import anyio
import httpx

from driver.errors import GatewayUnavailable
from driver.http1.client import Call, CallTimeouts, Client, Response, ServerUnreachable
from driver.http1.server_connection import ServerBroke

_CLOSE_SECONDS: Final = 2.0
_ADDED: Final = frozenset({"host", "content-length"})


class BulkTransport(httpx.AsyncBaseTransport):
    """Carries requests without a body to one server. `verify` is what https is verified with."""

    def __init__(self, url: str, verify: ssl.SSLContext | bool) -> None:
        parts = httpx.URL(url)
        origin = f"{parts.scheme}://{parts.netloc.decode('ascii')}"
        self._client = Client(origin, tls=verify if isinstance(verify, ssl.SSLContext) else None)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request; the body of the response is read when it is iterated. Raises httpx.TransportError.

        The extension `guard` is called right before the first byte is sent, and what it raises comes out.
        """
        timeout = request.extensions["timeout"]
        headers = [(name.lower(), value) for name, value in request.headers.items() if name.lower() not in _ADDED]
        call = Call(request.method, request.url.raw_path.decode("ascii"), headers)
        timeouts = CallTimeouts(timeout["connect"], send=timeout["write"], head=timeout["read"])
        stack = AsyncExitStack()
        try:
            response = await stack.enter_async_context(
                self._client.call(call, timeouts, before=request.extensions.get("guard", _nothing))
            )
        except ServerUnreachable as error:
            raise httpx.ConnectError(str(error), request=request) from error
        except TimeoutError as error:
            raise httpx.ReadTimeout("no answer in time", request=request) from error
        except ServerBroke as error:
            raise httpx.RemoteProtocolError(str(error), request=request) from error
        body = _Body(response, stack, timeout["read"])
        return httpx.Response(
            response.status,
            headers=response.headers,
            stream=body,
            request=request,
            extensions={"fill": body.fill},
        )

    async def aclose(self) -> None:
        await self._client.aclose()


def _nothing() -> None:
    """A request that nobody guards."""


class _Body(httpx.AsyncByteStream):
    def __init__(self, response: Response, stack: AsyncExitStack, seconds: float | None) -> None:
        self._response = response
        self._stack = stack
        self._seconds = seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Piece by piece, for a body that is not large: what explains a refusal."""
        try:
            while piece := await self._response.receive(self._seconds):
                yield piece
        except TimeoutError as error:
            raise httpx.ReadTimeout("the server sent nothing for too long") from error
        except ServerBroke as error:
            raise httpx.ReadError(str(error)) from error

    def fill(self, buffer: memoryview, check: Callable[[], None]) -> int:
        """As driver.gateway.archive.Fill says."""
        try:
            return self._response.fill(buffer, self._seconds, check)
        except TimeoutError as error:
            raise GatewayUnavailable("workspace: the transfer broke off (nothing came for too long)") from error
        except ServerBroke as error:
            raise GatewayUnavailable(f"workspace: the transfer broke off ({error})") from error

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_SECONDS):
            await self._stack.aclose()
