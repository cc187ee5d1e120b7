"""Carries pulls over httpx, so that what stands in for a network there does so for pulls too."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx

from driver.http1.client import Call, CallTimeouts, ServerUnreachable
from driver.http1.server_connection import ServerBroke


class Piecemeal:
    """An answer of httpx as driver.http1.client gives one."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers.multi_items()
        self._pieces = response.aiter_raw()

    async def receive(self, seconds: float | None = None) -> bytes:
        return await anext(self._pieces, b"")


class OverHttpx:
    """A driver.gateway.pull.Network."""

    def __init__(self, url: str, network: httpx.AsyncBaseTransport | None = None) -> None:
        self._client = httpx.AsyncClient(base_url=url, transport=network, trust_env=False)

    @asynccontextmanager
    async def call(self, call: Call, timeouts: CallTimeouts, *, before: Callable[[], None]) -> AsyncIterator[Piecemeal]:
        before()
        request = self._client.build_request(
            call.method, call.target, headers=call.headers, content=bytes(call.body or ())
        )
        try:
            response = await self._client.send(request, stream=True)
        except httpx.ConnectError as error:
            raise ServerUnreachable(str(error)) from error
        except httpx.HTTPError as error:
            raise ServerBroke(str(error)) from error
        try:
            yield Piecemeal(response)
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        await self._client.aclose()
