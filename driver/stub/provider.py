"""Passes model calls on to a real provider of the same wire.

The provider's answer goes back as it is, with one exception: its own 401, 409 and 410 would say something
about the sandbox here (docs/protocol.md, "Identity"), so they become 403 and 502 with the code
`provider_refused`.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import anyio
import httpx

from driver.http1 import Request
from driver.stub.answers import Answer, Body
from driver.stub.errors import Rejected, StubError

FIRST_BYTE_SECONDS: Final = 300.0
GAP_SECONDS: Final = 120.0
_CONNECT_SECONDS: Final = 10.0
_COMPLAINT_BYTES: Final = 512
_HOST: Final = re.compile(r"[A-Za-z0-9._:-]+")
_LAST_PORT: Final = 65_535

# What the caller says about the request itself; all else it says is about the gateway.
_PASSED_ON: Final = frozenset({"content-type", "accept", "anthropic-version", "anthropic-beta", "openai-beta"})
_PASSED_BACK: Final = frozenset({"content-type", "retry-after", "x-request-id", "request-id"})
_OURS: Final = {401: 403, 409: 502, 410: 403}


@dataclass(frozen=True)
class ProviderSettings:
    """Where the provider is, and its key. A `url` without a path gets `/v1`."""

    url: str
    key: str = ""
    first_byte: float = FIRST_BYTE_SECONDS
    gap: float = GAP_SECONDS


def provider_settings(url: str, key: str, *, url_from: str, key_from: str) -> ProviderSettings:
    """Settings that a person gave. Raises StubError that names where a wrong one came from."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise StubError(f"{url_from}: is no address ({error})") from None
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(parts.host):
        raise StubError(f"{url_from}: must begin with http:// or https:// and name a host")
    if parts.port is not None and parts.port > _LAST_PORT:
        raise StubError(f"{url_from}: its port must be at most {_LAST_PORT}")
    if not (key.isascii() and key.isprintable()):
        raise StubError(f"{key_from}: must be printable ASCII, for it goes into a header")
    return ProviderSettings(url, key)


class Provider:
    """A client of one provider. An async context manager: its connections are closed with it."""

    def __init__(self, settings: ProviderSettings) -> None:
        self._settings = settings
        base = settings.url.rstrip("/")
        self._base = base if httpx.URL(base).path.strip("/") else f"{base}/v1"
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._client = httpx.AsyncClient(timeout=timeout, limits=limits, follow_redirects=False)

    async def __aenter__(self) -> "Provider":
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def call(self, path: str, request: Request, body: bytes) -> AsyncIterator[Answer]:
        """The provider's answer to `path`, open while in the block.

        Rejected: 502 when it cannot be reached, 504 when it stays silent, and see the module.
        """
        headers = {name: value for name, value in request.headers if name in _PASSED_ON}
        headers["accept-encoding"] = "identity"
        if self._settings.key:
            headers |= {"authorization": f"Bearer {self._settings.key}", "x-api-key": self._settings.key}
        outgoing = self._client.build_request(request.method, f"{self._base}/{path}", headers=headers, content=body)
        response = await self._send(outgoing)
        try:
            if response.status_code in _OURS:
                raise await _refused(response)
            yield Answer(response.status_code, _headers_back(response), self._chunks(response))
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_CONNECT_SECONDS):
                await response.aclose()

    async def _send(self, outgoing: httpx.Request) -> httpx.Response:
        try:
            with anyio.fail_after(self._settings.first_byte):
                return await self._client.send(outgoing, stream=True)
        except TimeoutError:
            raise Rejected(504, "provider_silent", "the provider sent no first byte in time") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Rejected(502, "provider_unreachable", f"the provider cannot be reached: {error}") from error

    async def _chunks(self, response: httpx.Response) -> Body:
        """The body as it comes; BrokenOff when it ends early or a gap in it is too long."""
        chunks = response.aiter_raw()
        while True:
            try:
                with anyio.fail_after(self._settings.gap):
                    chunk = await anext(chunks, b"")
            except (TimeoutError, httpx.HTTPError) as error:
                raise BrokenOff("the provider's answer broke off") from error
            if not chunk:
                return
            yield chunk


class BrokenOff(Rejected):
    """The provider's answer broke off in the middle, so ours must look broken too."""

    def __init__(self, detail: str) -> None:
        super().__init__(502, "provider_broke_off", detail)


async def _refused(response: httpx.Response) -> Rejected:
    """The complaint is quoted: the person who started the stub is the one who can mend it."""
    quoted = bytearray()
    try:
        with anyio.move_on_after(_CONNECT_SECONDS):
            async for chunk in response.aiter_raw():
                quoted += chunk
                if len(quoted) >= _COMPLAINT_BYTES:
                    break
    except httpx.HTTPError:
        quoted.clear()
    text = " ".join(quoted[:_COMPLAINT_BYTES].decode("utf-8", "replace").split())
    detail = f"the provider refused the call with {response.status_code}: {text}"
    return Rejected(_OURS[response.status_code], "provider_refused", detail)


def _headers_back(response: httpx.Response) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in response.headers.multi_items() if name.lower() in _PASSED_BACK)
