"""Model calls that are passed on to a provider: here another stub-like server on loopback."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import httpx
import pytest
from anyio.abc import SocketAttribute

from driver import http1
from driver.stub.provider import ProviderSettings
from tests.stub.support import Caller, calling, code_of

pytestmark = pytest.mark.anyio

MESSAGE = {"model": "m", "input": "hello", "stream": True}


@dataclass
class FakeProvider:
    """What the provider was asked."""

    url: str = ""
    requests: list[http1.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def providing(answer: Callable[[http1.Exchange], Awaitable[None]]) -> AsyncIterator[FakeProvider]:
    provider = FakeProvider()

    async def handle(exchange: http1.Exchange) -> None:
        provider.bodies.append(await exchange.read(1 << 20) or b"")
        provider.requests.append(exchange.request)
        await answer(exchange)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    async with listener, anyio.create_task_group() as tasks:
        provider.url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        tasks.start_soon(http1.serve, listener.listeners[0], handle)
        yield provider
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def passing(
    answer: Callable[[http1.Exchange], Awaitable[None]], *, first_byte: float = 5, gap: float = 5
) -> AsyncIterator[tuple[Caller, FakeProvider]]:
    async with providing(answer) as provider:
        settings = ProviderSettings(provider.url, "the-key", first_byte=first_byte, gap=gap)
        async with calling(provider=settings) as caller:
            await caller.next()
            yield caller, provider


async def streamed(exchange: http1.Exchange) -> None:
    await exchange.start(200, [("content-type", "text/event-stream"), ("set-cookie", "a=b"), ("x-request-id", "r1")])
    for frame in (b"data: one\n\n", b": a comment\n\n", b"data: two\n\n"):
        await exchange.send(frame)
    await exchange.finish()


async def test_a_call_is_passed_on_and_back() -> None:
    """The provider sees the body as it was and its own key; the caller sees the answer as it is."""
    async with passing(streamed) as (caller, provider):
        answer = await caller.model("responses", MESSAGE, cookie="x=y", accept="text/event-stream")
        assert (answer.status_code, answer.text) == (200, "data: one\n\n: a comment\n\ndata: two\n\n")
        assert answer.headers["x-request-id"] == "r1"
        assert "set-cookie" not in answer.headers
        request = provider.requests[0]
        assert (request.path, json.loads(provider.bodies[0])) == ("/v1/responses", MESSAGE)
        assert request.header("authorization") == "Bearer the-key"
        assert request.header("x-api-key") == "the-key"
        assert request.header("accept") == "text/event-stream"
        assert all(request.header(name) is None for name in ("x-agent-run", "x-agent-epoch", "cookie"))
        assert caller.stub.token not in str(request.headers)


async def test_frames_come_as_the_provider_sends_them() -> None:
    """Nothing is held back until the answer is complete."""
    more = anyio.Event()

    async def slow(exchange: http1.Exchange) -> None:
        await exchange.start(200, [("content-type", "text/event-stream")])
        await exchange.send(b"data: one\n\n")
        await more.wait()
        await exchange.finish()

    async with passing(slow) as (caller, _):
        path = "/internal/agent/model/v1/responses"
        async with caller.http.stream("POST", path, headers=caller.claim_headers, json=MESSAGE) as answer:
            chunks = answer.aiter_raw()
            assert await anext(chunks) == b"data: one\n\n"
            more.set()
            assert [chunk async for chunk in chunks] == []


@pytest.mark.parametrize(
    ("status", "seen", "code"),
    [(401, 403, "provider_refused"), (410, 403, "provider_refused"), (409, 502, "provider_refused"), (429, 429, None)],
)
async def test_a_refusal_never_looks_like_the_gateways(status: int, seen: int, code: str | None) -> None:
    """The provider's 401, 409 and 410 say nothing about the sandbox; every other refusal goes back as it is."""

    async def refuse(exchange: http1.Exchange) -> None:
        headers = [("content-type", "application/json"), ("retry-after", "3")]
        await exchange.respond(status, headers, b'{"error": "no such key"}')

    async with passing(refuse) as (caller, _):
        answer = await caller.model("responses", MESSAGE)
        assert answer.status_code == seen
        if code:
            assert code_of(answer) == code
            assert f'refused the call with {status}: {{"error": "no such key"}}' in answer.json()["detail"]
        else:
            assert (answer.headers["retry-after"], answer.text) == ("3", '{"error": "no such key"}')
            assert caller.stub.state.journal.named("provider.refused", status=status)


async def test_a_provider_that_is_not_there() -> None:
    """A provider that cannot be reached reads 502."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    port = listener.extra(SocketAttribute.local_port)
    await listener.aclose()
    async with calling(provider=ProviderSettings(f"http://127.0.0.1:{port}")) as caller:
        await caller.next()
        answer = await caller.model("responses", MESSAGE)
        assert (answer.status_code, code_of(answer)) == (502, "provider_unreachable")


async def test_an_answer_that_breaks_off_looks_broken() -> None:
    """A stream that the provider breaks off has no clean end here either."""

    async def break_off(exchange: http1.Exchange) -> None:
        await exchange.start(200, [("content-type", "text/event-stream")])
        await exchange.send(b"data: one\n\n")
        await exchange.abort()

    async with passing(break_off) as (caller, _):
        with pytest.raises(httpx.RemoteProtocolError):
            await caller.model("responses", MESSAGE)
        await caller.stub.wait_for(lambda: caller.stub.state.as_json()["callsInFlight"] == 0)


async def test_a_silent_provider_is_cut() -> None:
    """No first byte in time reads 504; a gap that is too long breaks the stream off."""

    async def silent(exchange: http1.Exchange) -> None:
        if exchange.request.path.endswith("responses"):
            await exchange.start(200, [("content-type", "text/event-stream")])
            await exchange.send(b": waiting\n\n")
        await exchange.wait_gone()

    async with passing(silent, first_byte=0.2, gap=0.2) as (caller, _):
        answer = await caller.model("chat/completions", MESSAGE)
        assert (answer.status_code, code_of(answer)) == (504, "provider_silent")
        with pytest.raises(httpx.RemoteProtocolError):
            await caller.model("responses", MESSAGE)


async def test_a_caller_that_goes_away_ends_the_call() -> None:
    """The provider's connection is closed when nobody waits for the answer any more."""
    gone = anyio.Event()

    async def wait(exchange: http1.Exchange) -> None:
        await exchange.start(200, [("content-type", "text/event-stream")])
        await exchange.wait_gone()
        gone.set()

    async with passing(wait) as (caller, provider), anyio.create_task_group() as tasks:
        tasks.start_soon(caller.model, "responses", MESSAGE)
        await caller.stub.wait_for_event("request.answered", call="model")
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True), anyio.fail_after(5):
            await gone.wait()
    assert len(provider.requests) == 1
