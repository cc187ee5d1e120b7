"""How a request reaches the gateway and what comes back: four connections, bounded answers, one error seam.

The token goes to the gateway's origin only: no redirect is followed, no proxy variable is read, and no cookie
is kept.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import anyio
import httpx

from driver.errors import GatewayUnavailable
from driver.gateway.answer import ANSWER_SECONDS, CONNECT_SECONDS, USER_AGENT, Answer, BodyBuffer
from driver.gateway.bulk import BulkTransport

_FIRST_BYTE_SECONDS: Final = 120.0
_CLOSE_SECONDS: Final = 2.0


class Transport:
    """Connections to the gateway, kept apart by use. An async context manager.

    `network`, if it is given, carries the requests in place of sockets.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        verify: ssl.SSLContext | bool,
        on_answer: Callable[[], None],
        network: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._on_answer = on_answer
        self._stack = AsyncExitStack()

        def client(carrier: httpx.AsyncBaseTransport | None = network) -> httpx.AsyncClient:
            return httpx.AsyncClient(
                base_url=f"{url}/internal/agent/",
                headers={
                    "authorization": f"Bearer {token}",
                    "user-agent": USER_AGENT,
                    "accept-encoding": "identity",
                },
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                verify=verify,
                trust_env=False,
                follow_redirects=False,
                transport=carrier,
                timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            )

        self.control, self.renewals, self.uploads = client(), client(), client()
        self.downloads = client(network or BulkTransport(url, verify))

    async def __aenter__(self) -> "Transport":
        for client in (self.control, self.renewals, self.uploads, self.downloads):
            await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_SECONDS):
            await self._stack.aclose()

    async def answer(
        self,
        client: httpx.AsyncClient,
        request: httpx.Request,
        call: str,
        *,
        seconds: float = ANSWER_SECONDS,
        silence: float = ANSWER_SECONDS,
        also: Collection[int] = (),
        head_only: bool = False,
    ) -> Answer:
        """Send, and read the whole answer within `seconds`: a 2xx, or a status that is named in `also`.

        With `head_only` the body of such an answer is left unread, whatever it is.

        Bytes that the gateway does not take for `silence` seconds end the try before, and so do two minutes
        without any of its answer once it has taken them all: a lost connection must not use up every try. Raises
        GatewayUnavailable, ContractError, or what the status means.
        """
        request.extensions["timeout"] = httpx.Timeout(
            seconds,
            connect=min(seconds, CONNECT_SECONDS),
            write=min(seconds, silence),
            read=min(seconds, _FIRST_BYTE_SECONDS),
        ).as_dict()
        try:
            with anyio.fail_after(seconds):
                response = await client.send(request, stream=True)
                try:
                    self._on_answer()
                    is_wanted = response.is_success or response.status_code in also
                    body = b"" if head_only and is_wanted else await _bounded_body(call, response)
                finally:
                    await _close(response)
        except TimeoutError as error:
            raise GatewayUnavailable(f"{call}: no complete answer within {seconds:g} s") from error
        except httpx.HTTPError as error:
            raise _unavailable(call, error) from error
        answer = Answer(response.status_code, response.headers, body)
        if not answer.is_success and answer.status not in also:
            raise answer.refusal(call)
        return answer

    @asynccontextmanager
    async def stream(self, request: httpx.Request, call: str) -> AsyncIterator[httpx.Response]:
        """Send on the connections for downloads and leave the body of a 200 or 206 to the caller."""
        request.extensions["timeout"] = httpx.Timeout(
            ANSWER_SECONDS, connect=CONNECT_SECONDS, read=_FIRST_BYTE_SECONDS
        ).as_dict()
        try:
            response = await self.downloads.send(request, stream=True)
        except httpx.HTTPError as error:
            raise _unavailable(call, error) from error
        try:
            self._on_answer()
            if response.status_code not in (200, 206):
                body = await _bounded_body(call, response)
                raise Answer(response.status_code, response.headers, body).refusal(call)
            yield response
        except httpx.HTTPError as error:
            raise _unavailable(call, error) from error
        finally:
            await _close(response)


def _unavailable(call: str, error: httpx.HTTPError) -> GatewayUnavailable:
    said = str(error)
    return GatewayUnavailable(f"{call}: {type(error).__name__}" + (f" ({said})" if said else ""))


async def _bounded_body(call: str, response: httpx.Response) -> bytes:
    """The raw body."""
    buffer = BodyBuffer(call, is_success=response.is_success)
    async for chunk in response.aiter_raw():
        if not buffer.add(chunk):
            break
    return buffer.body()


async def _close(response: httpx.Response) -> None:
    with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_SECONDS):
        await response.aclose()
