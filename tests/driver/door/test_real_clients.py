"""The real clients of the three wires: what they return and raise through the door is what they do straight."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

from driver.door.permits import Budgets, TransportPermits
from driver.http1 import Exchange
from tests.driver.door.support import MODEL, Answering, Scene, scene

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

pytestmark = pytest.mark.anyio

RESPONSE = {
    "id": "r",
    "object": "response",
    "created_at": 1,
    "model": MODEL,
    "status": "completed",
    "output": [{"type": "function_call", "id": "f", "call_id": "c", "name": "look", "arguments": "{}"}],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 11,
        "output_tokens": 7,
        "total_tokens": 18,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    },
}
CALL = {"id": "t", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CHAT_USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
MESSAGE = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": MODEL,
    "stop_reason": None,
    "stop_sequence": None,
}
TOOL_USE = {"type": "tool_use", "id": "t", "name": "look", "input": {}}

WHOLES: dict[str, dict[str, Any]] = {
    "responses": RESPONSE,
    "chat": {
        **CHUNK,
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "h\xe9", "tool_calls": [CALL]},
                "finish_reason": "stop",
            }
        ],
        "usage": CHAT_USAGE,
    },
    "messages": {
        **MESSAGE,
        "content": [{"type": "text", "text": "h\xe9"}, TOOL_USE],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 11, "output_tokens": 7},
    },
}
EVENTS: dict[str, list[dict[str, Any] | str]] = {
    "responses": [
        {"type": "response.created", "sequence_number": 0, "response": {**RESPONSE, "status": "in_progress"}},
        {
            "type": "response.output_text.delta",
            "sequence_number": 1,
            "item_id": "i",
            "output_index": 0,
            "content_index": 0,
            "delta": "h\xe9",
            "logprobs": [],
        },
        {"type": "response.completed", "sequence_number": 2, "response": RESPONSE},
    ],
    "chat": [
        {**CHUNK, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "h\xe9"}, "finish_reason": None}]},
        {**CHUNK, "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, **CALL}]}, "finish_reason": "stop"}]},
        {**CHUNK, "choices": [], "usage": CHAT_USAGE},
        "[DONE]",
    ],
    "messages": [
        {
            "type": "message_start",
            "message": {**MESSAGE, "content": [], "usage": {"input_tokens": 11, "output_tokens": 1}},
        },
        {"type": "content_block_start", "index": 0, "content_block": TOOL_USE},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ],
}
ERRORS: dict[str, dict[str, Any]] = {
    "responses": {"type": "error", "code": "server_error", "message": "busy", "param": None, "sequence_number": 1},
    "chat": {"error": {"message": "busy", "type": "server_error"}},
    "messages": {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
}
WIRES = list(EVENTS)
IDS = [("x-request-id", "q1"), ("request-id", "q2")]


def wire_of(exchange: Exchange) -> str:
    return {"responses": "responses", "completions": "chat", "messages": "messages"}[
        exchange.request.path.split("/")[-1]
    ]


def frames(wire: str) -> list[bytes]:
    return [frame(wire, event) for event in EVENTS[wire]]


def frame(wire: str, event: dict[str, Any] | str) -> bytes:
    data = event if isinstance(event, str) else json.dumps(event)
    name = f"event: {event['type']}\n" if wire != "chat" and isinstance(event, dict) else ""
    return f"{name}data: {data}\n\n".encode()


async def streamed(exchange: Exchange) -> None:
    await stream_some(exchange, None)
    await exchange.finish()


async def stream_some(exchange: Exchange, count: int | None) -> None:
    await exchange.start(200, [("content-type", "text/event-stream; charset=utf-8"), *IDS])
    for part in frames(wire_of(exchange))[:count]:
        await exchange.send(part)


async def whole(exchange: Exchange) -> None:
    body = json.dumps(WHOLES[wire_of(exchange)]).encode()
    await exchange.respond(200, [("content-type", "application/json"), *IDS], body)


def refused(status: int, *headers: tuple[str, str]) -> Answering:
    async def answer(exchange: Exchange) -> None:
        error = {"message": "no", "type": "some_error", "param": "p", "code": "some_code"}
        body = {"type": "error", "error": error, "request_id": "rq"}
        told = [("content-type", "application/json"), ("retry-after-ms", "1"), *IDS, *headers]
        await exchange.respond(status, told, json.dumps(body).encode())

    return answer


async def cut(exchange: Exchange) -> None:
    await stream_some(exchange, 2)
    await exchange.abort()


async def stalled(exchange: Exchange) -> None:
    await stream_some(exchange, 2)
    await exchange.wait_gone()
    await exchange.abort()


async def silent(exchange: Exchange) -> None:
    await exchange.wait_gone()
    await exchange.abort()


async def error_event(exchange: Exchange) -> None:
    await exchange.start(200, [("content-type", "text/event-stream"), *IDS])
    wire = wire_of(exchange)
    await exchange.send(frame(wire, ERRORS[wire]))
    await exchange.finish()


def asking(
    wire: str, base: str, key: str, *, sync: bool, seconds: float, stream: bool
) -> tuple[Any, Callable[[], Any]]:
    """A client, and the call that it makes."""
    vendor = anthropic if wire == "messages" else openai
    kind = {
        (openai, True): "OpenAI",
        (openai, False): "AsyncOpenAI",
        (anthropic, True): "Anthropic",
        (anthropic, False): "AsyncAnthropic",
    }[vendor, sync]
    url = base if wire == "messages" else f"{base}/v1"
    client = getattr(vendor, kind)(base_url=url, api_key=key, timeout=seconds, max_retries=1)
    said = [{"role": "user", "content": "x"}]
    if wire == "messages":
        tools = [{"name": "look", "input_schema": {"type": "object"}}]
        call = partial(client.messages.create, max_tokens=10, messages=said, tools=tools)
    elif wire == "chat":
        call = partial(client.chat.completions.create, messages=said)
    else:
        call = partial(client.responses.create, input="x")
    return client, partial(call, model=MODEL, stream=stream)


async def outcome(wire: str, base: str, key: str, *, sync: bool, seconds: float = 5, stream: bool) -> list[Any]:
    """Everything that the client gave, and the error that it raised, if any."""
    client, call = asking(wire, base, key, sync=sync, seconds=seconds, stream=stream)
    got: list[Any] = []

    def all_at_once() -> None:
        answer = call()
        got.extend(event.model_dump() for event in (answer if stream else [answer]))

    try:
        if sync:
            await anyio.to_thread.run_sync(all_at_once)
        elif stream:
            async for event in await call():
                got.append(event.model_dump())  # noqa: PERF401 # what came before an error counts
        else:
            got.append((await call()).model_dump())
    except Exception as error:  # what is raised is what is compared
        names = ("status_code", "code", "type", "param", "request_id", "message", "body")
        got.append((type(error).__name__, [repr(getattr(error, name, None)) for name in names]))
    await anyio.to_thread.run_sync(client.close) if sync else await client.close()
    return got


async def compare(here: Scene, wire: str, **settings: Any) -> tuple[list[Any], int]:
    """The outcome, the same straight and through the door, and how many calls it took."""
    straight = await outcome(wire, here.provider.url, "key", **settings)
    calls = len(here.provider.requests)
    assert await outcome(wire, here.door.url, here.door.key, **settings) == straight
    assert len(here.provider.requests) == 2 * calls
    return straight, calls


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("wire", WIRES)
async def test_good_answers_are_the_same(wire: str, sync: bool) -> None:
    """Streamed or not, with tools and text, the clients read what the provider sent."""
    for answering, stream in ((streamed, True), (whole, False)):
        async with scene(answering) as here:
            got, calls = await compare(here, wire, sync=sync, stream=stream)
            assert calls == 1
            assert len(got) == (len(EVENTS[wire]) - (wire == "chat") if stream else 1)
            await here.lines.wait_for("model.call.released")
            told = here.door.statistics()
            assert (told["answered"], told["inputTokens"], told["outputTokens"]) == (1, 11, 7)


@pytest.mark.parametrize(
    ("status", "headers", "calls"),
    [
        (400, [], 1),
        (403, [], 1),
        (404, [], 1),
        (422, [], 1),
        (429, [("retry-after", "1")], 2),
        (400, [("x-should-retry", "true")], 2),
        (429, [("x-should-retry", "false")], 1),
        (500, [], 2),
        (503, [], 2),
        (529, [], 2),
    ],
)
@pytest.mark.parametrize("wire", WIRES)
async def test_errors_and_retries_are_the_same(
    wire: str, status: int, headers: list[tuple[str, str]], calls: int
) -> None:
    """A provider's refusal raises the same error after the same number of tries."""
    async with scene(refused(status, *headers)) as here:
        got, tried = await compare(here, wire, sync=False, stream=True)
        assert tried == calls
        assert got[0][1][0] == str(status)


@pytest.mark.parametrize(("answering", "seconds"), [(cut, 5), (error_event, 5), (stalled, 0.3)])
@pytest.mark.parametrize("wire", WIRES)
async def test_streams_that_end_badly_are_the_same(wire: str, answering: Answering, seconds: float) -> None:
    """A cut, an error event and a silence raise the same in the middle of a stream."""
    async with scene(answering) as here:
        got, calls = await compare(here, wire, sync=False, stream=True, seconds=seconds)
        assert calls == 1
        # The Responses client hands an error event on like any other.
        assert isinstance(got[-1], tuple) or (wire, answering) == ("responses", error_event)


@pytest.mark.parametrize("wire", WIRES)
async def test_time_outs_are_the_same(wire: str) -> None:
    """A client that gives up before the first byte does so in the same way, and leaves nothing behind."""
    async with scene(silent) as here:
        got, calls = await compare(here, wire, sync=False, stream=False, seconds=0.2)
        assert (got[0][0], calls) == ("APITimeoutError", 2)
        await here.lines.wait_for("model.call.released", 2)
        assert here.door.statistics()["abandoned"] == 2


@pytest.mark.parametrize("wire", WIRES)
async def test_client_that_aborts_gives_everything_back(wire: str) -> None:
    """A program that breaks off its loop over the events cancels the provider."""

    async def first_only(exchange: Exchange) -> None:
        await stream_some(exchange, 1)
        await silent(exchange)

    async with scene(first_only) as here:
        client, call = asking(wire, here.door.url, here.door.key, sync=False, seconds=5, stream=True)
        async with await call() as events:
            await anext(aiter(events))
        await here.lines.wait_for("model.call.released")
        with anyio.fail_after(5):
            await here.provider.settled.wait()
        assert here.door.statistics()["abandoned"] == 1
        await client.close()


@pytest.mark.parametrize("wire", WIRES)
async def test_gateway_that_is_gone_is_tried_again(wire: str) -> None:
    """Where a client would see a reset it reads a 502, which it tries again just the same."""

    async def gone(exchange: Exchange) -> None:
        await exchange.abort(reset=True)

    async with scene(gone) as here:
        got = await outcome(wire, here.door.url, here.door.key, sync=False, stream=True)
        assert (got[0][0], got[0][1][0]) == ("InternalServerError", "502")
        assert len(here.provider.requests) == 2


async def test_full_door_is_tried_again() -> None:
    """A client that finds the door full waits as it is told, and gets its answer then."""
    budgets = Budgets(transports=TransportPermits(active=1, queue=0))
    got: list[Any] = []
    async with scene(streamed, budgets=budgets) as here, anyio.create_task_group() as tasks:

        async def call() -> None:
            got.append(await outcome("messages", here.door.url, here.door.key, sync=False, stream=True))

        async with budgets.transports.hold(lambda _: None):
            tasks.start_soon(call)
            await here.lines.wait_for("model.call.refused")
            assert here.provider.requests == []
        await here.lines.wait_for("model.call.released")
        assert here.door.statistics()["refusals"] == {"local_capacity": 1}
    assert len(got[0]) == len(EVENTS["messages"])


async def test_parallel_calls_are_all_answered() -> None:
    """More calls than permits, from one client: each waits its turn and is answered."""
    budgets = Budgets(transports=TransportPermits(active=8, queue=40))
    async with scene(streamed, budgets=budgets) as here:
        client, call = asking("responses", here.door.url, here.door.key, sync=False, seconds=20, stream=True)
        answers: list[int] = []

        async def one() -> None:
            answers.append(len([event async for event in await call()]))

        async with anyio.create_task_group() as tasks:
            for _ in range(40):
                tasks.start_soon(one)
        await client.close()
        assert answers == [len(EVENTS["responses"])] * 40
        assert here.provider.most_open <= 8
