"""The pull, which asks for a run.

It goes over the driver's own small HTTP client: the first pull is what a start is measured by, and that client is there
long before httpx is (driver.loading).
"""

import json
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, Self

import anyio

from driver.clock import Clock
from driver.errors import GatewayUnavailable
from driver.gateway.answer import ANSWER_SECONDS, CONNECT_SECONDS, USER_AGENT, Answer, BodyBuffer
from driver.gateway.retry import retry_after
from driver.http1.client import Call, CallTimeouts, Client, ServerUnreachable
from driver.http1.server_connection import ServerBroke

if TYPE_CHECKING:
    from driver.gateway.wire import Claim

_NEXT: Final = "/internal/agent/next"


@dataclass(frozen=True)
class NoWork:
    """There is no run to lease now; `retry_after` in seconds when the gateway told one."""

    retry_after: float | None


@dataclass(frozen=True)
class Pulled:
    """A claim, and the moment of the driver's clock at which its pull was sent."""

    claim: "Claim"
    sent_at: float


class Told:
    """What the gateway has told in answer to a pull, not read yet."""

    def __init__(self, answer: Answer, sent_at: float) -> None:
        self._answer = answer
        self._sent_at = sent_at

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it that has to be parsed."""
        return self._answer.status == 204

    def read(self) -> Pulled | NoWork:
        """What it says. Raises the error of a refusing status, and ContractError."""
        if self.is_empty:
            return NoWork(retry_after(self._answer.headers))
        if not self._answer.is_success:
            raise self._answer.refusal("next")
        from driver.gateway.wire import Claim

        return Pulled(self._answer.parse(Claim, "next"), self._sent_at)


class Response(Protocol):
    """An answer's head, and its body piece by piece, as driver.http1.client gives it."""

    status: int
    headers: list[tuple[str, str]]

    async def receive(self, seconds: float | None = None) -> bytes: ...


class Network(Protocol):
    """What carries the pulls: a driver.http1.client.Client."""

    def call(
        self, call: Call, timeouts: CallTimeouts, *, before: Callable[[], None]
    ) -> AbstractAsyncContextManager[Response]: ...

    async def aclose(self) -> None: ...


class PullClient:
    """Pulls, one at a time. An async context manager: its connection is closed with it.

    `on_answer` is called for each answer that came, whatever it says; `on_out` when a pull is about to be sent, and
    when it could not be. `network`, if it is given, carries the requests in place of sockets.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        clock: Clock,
        verify: ssl.SSLContext | bool,
        on_answer: Callable[[], None] = lambda: None,
        on_out: Callable[[], None] = lambda: None,
        network: Network | None = None,
    ) -> None:
        self._clock = clock
        self._on_answer = on_answer
        self._on_out = on_out
        self._network: Network = network or Client(url, tls=verify if isinstance(verify, ssl.SSLContext) else None)
        self._headers = [
            ("authorization", f"Bearer {token}"),
            ("user-agent", USER_AGENT),
            ("accept", "*/*"),
            ("accept-encoding", "identity"),
            ("content-type", "application/json"),
        ]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._network.aclose()

    async def next(self, kinds: list[str], *, wait: float = 0.0) -> Told:
        """`POST next`. With `wait` (seconds) the gateway may hold the call until there is a run."""
        sent_at = self._clock.now()
        return Told(await self._ask(kinds, wait), sent_at)

    async def _ask(self, kinds: list[str], wait: float) -> Answer:
        seconds = ANSWER_SECONDS + wait
        call = Call("POST", _NEXT, list(self._headers), json.dumps({"kinds": kinds, "driver": USER_AGENT}).encode())
        if wait >= 1:
            call.headers.append(("prefer", f"wait={wait:.0f}"))
        timeouts = CallTimeouts(connect=CONNECT_SECONDS, send=ANSWER_SECONDS, head=seconds)
        try:
            with anyio.fail_after(seconds):
                async with self._network.call(call, timeouts, before=self._on_out) as response:
                    self._on_answer()
                    headers: dict[str, str] = {}
                    for name, value in response.headers:
                        headers.setdefault(name, value)
                    buffer = BodyBuffer("next", is_success=200 <= response.status < 300)
                    while (piece := await response.receive()) and buffer.add(piece):
                        pass
                    return Answer(response.status, headers, buffer.body())
        except TimeoutError as error:
            raise GatewayUnavailable(f"next: no complete answer within {seconds:g} s") from error
        except (ServerUnreachable, ServerBroke) as error:
            raise GatewayUnavailable(f"next: {error}") from error
        finally:
            self._on_out()
