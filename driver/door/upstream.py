"""The door's way to the gateway: opens one call and gives its answer as it arrives.

It has connections of its own, so model calls never stand in the way of a renewal. It keeps no cookies,
follows no redirect, reads no proxy variables, and never tries again: that is the program's decision.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import anyio
import httpx

from driver.door.headers import Header
from driver.door.wires import OBSERVATIONS
from driver.errors import DoorRefusal

RECEIVED_BYTES: Final = 64 * 1024
"""The most that one `Answer.receive` gives: what httpcore reads at once."""

_SLICE: Final = 64 * 1024
_IDLE_CONNECTIONS: Final = 64
_IDLE_SECONDS: Final = 3.0
_CLOSE_SECONDS: Final = 5.0


@dataclass(frozen=True)
class UpstreamTimeouts:
    """In seconds. A little longer than the gateway's own for a silent provider, so that it is the one to cut.

    `first_byte` counts from the moment the request was sent to the first byte of the answer's body.
    """

    connect: float = 10.0
    first_byte: float = 310.0
    gap: float = 130.0


@dataclass(frozen=True)
class UpstreamCall:
    """What is sent. `path` is the door's; headers are the program's that pass; `body` is None for no body."""

    method: str
    path: str
    query: str
    headers: list[Header]
    body: bytes | bytearray | None


class Answer:
    """The gateway's answer to one call, its body not yet read."""

    def __init__(self, response: httpx.Response, deadline: float, gap: float) -> None:
        self.status = response.status_code
        self.headers: list[Header] = [
            (key.decode("latin-1").lower(), value.decode("latin-1")) for key, value in response.headers.raw
        ]
        assert isinstance(response.stream, httpx.AsyncByteStream)
        self._stream = aiter(response.stream)
        self._deadline = deadline
        self._gap = gap

    def header(self, name: str) -> str:
        """The first value of a header in lower case, or an empty string."""
        return next((value for key, value in self.headers if key == name), "").strip().lower()

    async def receive(self) -> bytes:
        """The next bytes of the body, or `b""` at its clean end. Raises DoorRefusal when it broke off."""
        with _translated(), anyio.fail_after(self._deadline - anyio.current_time()):
            data: bytes = await anext(self._stream, b"")
        self._deadline = anyio.current_time() + self._gap
        return data


class Upstream:
    """Calls to the gateway for one run's claim."""

    def __init__(
        self,
        gateway_url: str,
        token: str,
        *,
        verify: ssl.SSLContext | bool,
        run_id: str,
        epoch: int,
        user_agent: str,
        guard: Callable[[], None] = lambda: None,
        timeouts: UpstreamTimeouts | None = None,
    ) -> None:
        """`guard` is called right before each call is sent; it raises ClaimInDoubt."""
        self._guard = guard
        self._gateway_url = gateway_url
        self._run_id = run_id
        self._identity: list[Header] = [
            ("authorization", f"Bearer {token}"),
            ("x-agent-run", run_id),
            ("x-agent-epoch", str(epoch)),
            ("user-agent", user_agent),
            ("accept-encoding", "identity"),
        ]
        self._timeouts = timeouts or UpstreamTimeouts()
        # The permits are the only queue, so the pool has no limit of its own.
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=_IDLE_CONNECTIONS, keepalive_expiry=_IDLE_SECONDS
        )
        self._transport = httpx.AsyncHTTPTransport(verify=verify, trust_env=False, limits=limits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_SECONDS):
            await self._transport.aclose()

    @asynccontextmanager
    async def open(self, call: UpstreamCall) -> AsyncIterator[Answer]:
        """Send one call; gives its answer once the head is there. The call has settled when the block is left.

        Raises DoorRefusal: 502 when the gateway cannot be reached or breaks off, 504 when it is silent.
        """
        request = httpx.Request(
            call.method,
            self._url(call),
            headers=[(key.encode("latin-1"), value.encode("latin-1")) for key, value in self._headers(call)],
            content=None if call.body is None else _slices(call.body),
            extensions={"timeout": self._phase_timeouts()},
        )
        self._guard()
        opened = anyio.current_time()
        with _translated():
            response = await self._transport.handle_async_request(request)
        deadline = max(opened + self._timeouts.first_byte, anyio.current_time() + self._timeouts.gap)
        try:
            yield Answer(response, deadline, self._timeouts.gap)
        finally:
            # A connection that broke has nothing more to tell when it is closed.
            with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_SECONDS), suppress(httpx.HTTPError):
                await response.aclose()

    def _url(self, call: UpstreamCall) -> str:
        base = f"{self._gateway_url}/internal/agent"
        if call.path == OBSERVATIONS:
            return f"{base}/runs/{self._run_id}/runtime/observations"
        return f"{base}/model{call.path}" + (f"?{call.query}" if call.query else "")

    def _headers(self, call: UpstreamCall) -> list[Header]:
        length = [] if call.body is None else [("content-length", str(len(call.body)))]
        return [*call.headers, *self._identity, *length]

    def _phase_timeouts(self) -> Mapping[str, float]:
        return {
            "connect": self._timeouts.connect,
            "read": self._timeouts.first_byte,
            "write": self._timeouts.gap,
        }


async def _slices(body: bytes | bytearray) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _SLICE):
        yield bytes(body[start : start + _SLICE])


@contextmanager
def _translated() -> Iterator[None]:
    """Turn what httpx raises into the door's refusal."""
    try:
        yield
    except (TimeoutError, httpx.ReadTimeout) as error:
        raise DoorRefusal(504, "gateway_silent", "the gateway sent nothing for too long") from error
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise DoorRefusal(502, "gateway_unreachable", "the gateway cannot be reached") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DoorRefusal(502, "gateway_broke_off", "the gateway broke the call off") from error
