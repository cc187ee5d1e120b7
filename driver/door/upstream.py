"""The door's way to the gateway: opens one call and gives its answer as it arrives.

It has connections of its own, so model calls never stand in the way of a renewal. It keeps no cookies,
follows no redirect, reads no proxy variables, and never tries again: that is the program's decision.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import anyio

from driver.door.headers import Header
from driver.door.wires import OBSERVATIONS
from driver.errors import DoorRefusal
from driver.http1 import client
from driver.http1.server_connection import ServerBroke


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

    def __init__(self, response: client.Response, first_byte_by: float, gap: float) -> None:
        self.status = response.status
        self.headers: list[Header] = response.headers
        self._response = response
        self._first_byte_by: float | None = first_byte_by
        self._gap = gap

    def header(self, name: str) -> str:
        """The first value of a header in lower case, or an empty string."""
        return self._response.header(name).strip().lower()

    async def receive(self) -> bytes:
        """The next bytes of the body, or `b""` at its clean end. Raises DoorRefusal when it broke off.

        Only the time in here counts as the gateway's silence: the program may take as long as it likes between.
        """
        wait = self._gap
        if self._first_byte_by is not None:
            wait = max(wait, self._first_byte_by - anyio.current_time())
        with _translated():
            data = await self._response.receive(wait)
        self._first_byte_by = None
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
        """`guard` is called right before the first byte of each call is sent; it raises ClaimInDoubt."""
        self._guard = guard
        self._run_id = run_id
        self._identity: list[Header] = [
            ("authorization", f"Bearer {token}"),
            ("x-agent-run", run_id),
            ("x-agent-epoch", str(epoch)),
            ("user-agent", user_agent),
            ("accept-encoding", "identity"),
        ]
        self._timeouts = timeouts or UpstreamTimeouts()
        # It opens a connection whenever none is free: the permits are the only queue.
        self._client = client.Client(gateway_url, tls=verify if isinstance(verify, ssl.SSLContext) else None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def open(self, call: UpstreamCall) -> AsyncIterator[Answer]:
        """Send one call; gives its answer once the head is there. The call has settled when the block is left.

        Raises DoorRefusal: 502 when the gateway cannot be reached or breaks off, 504 when it is silent.
        """
        target = self._target(call)
        sent = client.Call(call.method, target, [*call.headers, *self._identity], call.body)
        timeouts = client.CallTimeouts(self._timeouts.connect, send=self._timeouts.gap, head=self._timeouts.first_byte)
        async with AsyncExitStack() as stack:
            opened = anyio.current_time()
            with _translated():
                response = await stack.enter_async_context(self._client.call(sent, timeouts, before=self._guard))
            yield Answer(response, opened + self._timeouts.first_byte, self._timeouts.gap)

    def _target(self, call: UpstreamCall) -> str:
        if call.path == OBSERVATIONS:
            return f"/internal/agent/runs/{self._run_id}/runtime/observations"
        return f"/internal/agent/model{call.path}" + (f"?{call.query}" if call.query else "")


@contextmanager
def _translated() -> Iterator[None]:
    """Turn what went wrong on the way to the gateway into the door's refusal."""
    try:
        yield
    except TimeoutError as error:
        raise DoorRefusal(504, "gateway_silent", "the gateway sent nothing for too long") from error
    except client.ServerUnreachable as error:
        raise DoorRefusal(502, "gateway_unreachable", "the gateway cannot be reached") from error
    except ServerBroke as error:
        raise DoorRefusal(502, "gateway_broke_off", "the gateway broke the call off") from error
