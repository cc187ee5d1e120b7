"""A gateway with a model behind it, on a real socket, and a door in front of it."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx
from anyio.abc import SocketAttribute

from driver import http1
from driver.clock import BootClock
from driver.door.permits import Budgets
from driver.door.server import Door, open_door
from driver.door.upstream import Upstream, UpstreamTimeouts
from driver.http1 import ClientGone, Exchange, Patience, Request
from driver.log import Log, render_json

TOKEN = "sandbox-token-0123456789"
MODEL = "model-1"

Answering = Callable[[Exchange], Awaitable[None]]


@dataclass
class Provider:
    """The gateway's model side. `answer` is what it does with each call; all calls are recorded."""

    answer: Answering
    url: str = ""
    requests: list[Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    open: int = 0
    most_open: int = 0
    arrived: anyio.Event = field(default_factory=anyio.Event)
    settled: anyio.Event = field(default_factory=anyio.Event)

    async def handle(self, exchange: Exchange) -> None:
        body = await exchange.read(64 << 20)
        assert body is not None
        self.requests.append(exchange.request)
        self.bodies.append(body)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        self.arrived.set()
        try:
            await self.answer(exchange)
        finally:
            self.open -= 1
            self.settled.set()


class Lines:
    """A log in memory. `wait_for` returns once an event has been written often enough."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self._written = anyio.Event()
        self.log = Log(self._write, render=render_json, level="debug", wall=lambda: 0.0)

    def _write(self, line: str) -> None:
        self.text.append(line)
        self._written.set()
        self._written = anyio.Event()

    def named(self, event: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self.text) if line["event"] == event]

    async def wait_for(self, event: str, times: int = 1) -> list[dict[str, Any]]:
        with anyio.fail_after(10):
            while len(self.named(event)) < times:
                await self._written.wait()
        return self.named(event)


@dataclass
class Scene:
    """A door, what is before it and what is behind it."""

    door: Door
    provider: Provider
    budgets: Budgets
    lines: Lines
    claims_refused: list[int]
    client: httpx.AsyncClient

    def stream(self, path: str = "/v1/responses", **members: Any) -> Any:
        return self.client.stream("POST", path, json={"model": MODEL, "stream": True, **members})

    async def post(self, path: str = "/v1/responses", **members: Any) -> httpx.Response:
        return await self.client.post(path, json={"model": MODEL, **members})

    def idle(self) -> bool:
        """Whether every permit and every byte has come back."""
        transports, parsing = self.budgets.transports.statistics(), self.budgets.parsing.statistics()
        held = (transports.active, transports.waiting, parsing.active, parsing.waiting)
        return held == (0, 0, 0, 0) and self.budgets.storage.statistics().reserved == 0


@asynccontextmanager
async def served(provider: Provider) -> AsyncIterator[Provider]:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        provider.url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(http1.serve, listener, provider.handle)
            yield provider
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def scene(
    answer: Answering,
    *,
    budgets: Budgets | None = None,
    timeouts: UpstreamTimeouts | None = None,
    gateway_url: str | None = None,
    guard: Callable[[], None] = lambda: None,
    patience: Patience | None = None,
    on_claim_refused: Callable[[int], None] | None = None,
) -> AsyncIterator[Scene]:
    """A door to a provider that answers so. On the way out every budget must have come back."""
    budgets = budgets or Budgets()
    lines = Lines()
    claims_refused: list[int] = []
    async with served(Provider(answer)) as provider:
        upstream = Upstream(
            gateway_url or provider.url,
            TOKEN,
            verify=False,
            run_id="run-7",
            epoch=3,
            user_agent="driver/test",
            guard=guard,
            timeouts=timeouts,
        )
        async with open_door(
            upstream,
            model=MODEL,
            budgets=budgets,
            log=lines.log,
            clock=BootClock(),
            on_claim_refused=on_claim_refused or claims_refused.append,
            patience=patience,
        ) as door:
            headers = {"authorization": f"Bearer {door.key}"}
            async with httpx.AsyncClient(base_url=door.url, headers=headers, trust_env=False, timeout=10) as client:
                here = Scene(door, provider, budgets, lines, claims_refused, client)
                yield here
        assert here.idle()


def sse(*frames: bytes, gate: anyio.Event | None = None) -> Answering:
    """Answers with an event stream; after the first frame it waits for `gate`."""

    async def answer(exchange: Exchange) -> None:
        await exchange.start(200, [("content-type", "text/event-stream; charset=utf-8")])
        for number, frame in enumerate(frames):
            if number and gate is not None:
                await gate.wait()
            await exchange.send(frame)
        await exchange.finish()

    return answer


def reply(status: int, body: bytes, *headers: tuple[str, str]) -> Answering:
    """Answers with a whole body."""

    async def answer(exchange: Exchange) -> None:
        await exchange.respond(status, [("content-type", "application/json"), *headers], body)

    return answer


def raw(data: bytes) -> Answering:
    """Answers with exact bytes, whatever HTTP says of them, and closes."""

    async def answer(exchange: Exchange) -> None:
        await exchange._connection._stream.send(data)  # a server does not offer to break its own rules
        await exchange.abort()

    return answer


def held_until(gate: anyio.Event, body: bytes = b"{}") -> Answering:
    """Answers once `gate` is set; sees the client go meanwhile."""

    async def answer(exchange: Exchange) -> None:
        gone = True
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                await exchange.wait_gone()
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            await gate.wait()
            gone = False
            tasks.cancel_scope.cancel()
        if gone:
            raise ClientGone
        await exchange.respond(200, [("content-type", "application/json")], body)

    return answer


CREATED = b'event: response.created\ndata: {"type":"response.created","response":{"id":"r","usage":null}}\n\n'
DELTA = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"h\xc3\xa9"}\n\n'
COMPLETED = (
    b'event: response.completed\ndata: {"type":"response.completed","response":'
    b'{"output":[{"usage":{"input_tokens":1}}],"usage":{"input_tokens":11,"output_tokens":7}}}\n\n'
)
