"""How a request reaches the gateway and what comes back: four connections, bounded answers, one error seam.

The token goes to the gateway's origin only: no redirect is followed, no proxy variable is read, and no cookie
is kept.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Final, TypeVar

import anyio
import httpx
from pydantic import ValidationError

from driver import __version__
from driver.errors import ContractError, GatewayUnavailable
from driver.gateway.bulk import BulkTransport
from driver.gateway.retry import error_for
from driver.gateway.wire import Message, Problem

USER_AGENT: Final = f"agent-sandbox-driver/{__version__}"

_KIB = 1024
_MIB = 1024 * _KIB
# What is parsed in one go holds up the event loop: 4 MiB of text for some 20 ms.
ANSWER_BYTES: Final = 4 * _MIB
PROBLEM_BYTES: Final = 64 * _KIB
ANSWER_SECONDS: Final = 30.0
_CONNECT_SECONDS: Final = 10.0
_FIRST_BYTE_SECONDS: Final = 120.0
_CLOSE_SECONDS: Final = 2.0

M = TypeVar("M", bound=Message)


def tls_context(gateway_url: str, extra_ca: Path | None) -> ssl.SSLContext | bool:
    """What httpx verifies the gateway with: the system's store and the extra CA, or nothing for plain http.

    Raises OSError or ssl.SSLError when the CA file cannot be loaded.
    """
    if not gateway_url.lower().startswith("https:"):
        return False
    context = ssl.create_default_context()
    if extra_ca is not None:
        context.load_verify_locations(cafile=extra_ca)
    return context


@dataclass(frozen=True)
class Answer:
    """A whole answer. Header names are looked up in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def parse(self, model: type[M], call: str) -> M:
        """The JSON message of a 200. Raises ContractError naming the field that is missing or wrong."""
        if self.status != 200:
            raise ContractError(f"{call}: answered {self.status} where 200 was due")
        try:
            return model.model_validate_json(self.body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or "the body"
            raise ContractError(f"{call}: {field}: {first['msg']}") from error


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
                timeout=httpx.Timeout(ANSWER_SECONDS, connect=_CONNECT_SECONDS),
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
    ) -> Answer:
        """Send, and read the whole answer within `seconds`: a 2xx, or a status that is named in `also`.

        Bytes that the gateway does not take for `silence` seconds end the try before. Raises
        GatewayUnavailable, ContractError, or what the status means.
        """
        request.extensions["timeout"] = httpx.Timeout(
            seconds, connect=min(seconds, _CONNECT_SECONDS), write=min(seconds, silence)
        ).as_dict()
        try:
            with anyio.fail_after(seconds):
                response = await client.send(request, stream=True)
                try:
                    self._on_answer()
                    body = await _bounded_body(call, response)
                finally:
                    await _close(response)
        except TimeoutError as error:
            raise GatewayUnavailable(f"{call}: no complete answer within {seconds:g} s") from error
        except httpx.HTTPError as error:
            raise _unavailable(call, error) from error
        answer = Answer(response.status_code, response.headers, body)
        if not 200 <= answer.status < 300 and answer.status not in also:
            raise error_for(call, answer.status, answer.headers, _problem_code(answer.body))
        return answer

    @asynccontextmanager
    async def stream(self, request: httpx.Request, call: str) -> AsyncIterator[httpx.Response]:
        """Send on the connections for downloads and leave the body of a 200 or 206 to the caller."""
        request.extensions["timeout"] = httpx.Timeout(
            ANSWER_SECONDS, connect=_CONNECT_SECONDS, read=_FIRST_BYTE_SECONDS
        ).as_dict()
        try:
            response = await self.downloads.send(request, stream=True)
        except httpx.HTTPError as error:
            raise _unavailable(call, error) from error
        try:
            self._on_answer()
            if response.status_code not in (200, 206):
                code = _problem_code(await _bounded_body(call, response))
                raise error_for(call, response.status_code, response.headers, code)
            yield response
        except httpx.HTTPError as error:
            raise _unavailable(call, error) from error
        finally:
            await _close(response)


def _unavailable(call: str, error: httpx.HTTPError) -> GatewayUnavailable:
    said = str(error)
    return GatewayUnavailable(f"{call}: {type(error).__name__}" + (f" ({said})" if said else ""))


async def _bounded_body(call: str, response: httpx.Response) -> bytes:
    """The raw body. A problem document that is too large is none: the status decides."""
    limit = ANSWER_BYTES if response.is_success else PROBLEM_BYTES
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > limit:
            if not response.is_success:
                return b""
            raise ContractError(f"{call}: the answer is larger than {limit:,} bytes")
    return bytes(body)


async def _close(response: httpx.Response) -> None:
    with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_SECONDS):
        await response.aclose()


def _problem_code(body: bytes) -> str | None:
    try:
        return Problem.model_validate_json(body).code
    except ValidationError:
        return None
