"""The model client: tries, waits, refusals, and the shapes of each wire."""

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute

from driver.http1 import Exchange, serve
from kinds.programs.errors import (
    CallBusy,
    CallCut,
    CallFault,
    CallRefused,
    CallUnanswered,
    ContextFull,
    DoorClosed,
    InputsUnusable,
)
from kinds.programs.exchange import Door, Patience
from kinds.programs.model import ModelClient, Waits
from kinds.programs.retry import Backoff, retry_after
from kinds.programs.sse import Frame
from kinds.programs.transcript import Transcript
from kinds.programs.usage import UsageLedger
from kinds.programs.wires import Tool, Turn, wire_named

pytestmark = pytest.mark.anyio

NOW = 1_000_000_000.0
DONE = {"status": "completed", "output": [], "usage": {"input_tokens": 1}}
STREAMED = b'data: {"type":"response.completed","response":{"output":[]}}\n\n'

Handler = Callable[[Exchange], Awaitable[None]]


class Watch:
    """Collects what the client tells."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float]] = []

    def retrying(self, error: CallFault, seconds: float) -> None:
        self.told.append((str(error), seconds))


class Asking:
    """A client, and what it waited for."""

    def __init__(self, url: str, patience: Patience) -> None:
        self.waited: list[float] = []
        self.usage = UsageLedger()
        self.transcript = Transcript()
        wire = wire_named("responses")
        self.transcript.add(wire.user("hello"))
        waits = Waits(lambda: NOW, patience, random.Random(1), self._sleep)
        door = Door.at(url, "key")
        tools = [Tool("t", "d", {})]
        self.client = ModelClient(door, wire, "m", system="s", tools=tools, waits=waits, usage=self.usage)
        self.watch = Watch()

    async def _sleep(self, seconds: float) -> None:
        self.waited.append(seconds)

    async def ask(self) -> Turn:
        return await self.client.ask(self.transcript, self.watch)


@asynccontextmanager
async def asking(*answers: Handler, patience: Patience | None = None) -> AsyncIterator[Asking]:
    """A client before a door that gives these answers, and the last one again and again."""
    left = list(answers)

    async def handle(exchange: Exchange) -> None:
        answer = left.pop(0) if len(left) > 1 else left[0]
        await answer(exchange)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.listeners[0].extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(serve, listener.listeners[0], handle)
        yield Asking(f"http://127.0.0.1:{port}", patience or Patience())
        tasks.cancel_scope.cancel()


def status(code: int, body: Any = None, *, unread: bool = False, **headers: str) -> Handler:
    async def answer(exchange: Exchange) -> None:
        if not unread:
            await exchange.read(1 << 20)
        named = [(name.replace("_", "-"), value) for name, value in headers.items()]
        await exchange.respond(code, named, b"" if body is None else json.dumps(body).encode())

    return answer


def streamed(*parts: bytes, cut: bool = False) -> Handler:
    async def answer(exchange: Exchange) -> None:
        await exchange.read(1 << 20)
        await exchange.start(200, [("content-type", "text/event-stream")])
        for part in parts:
            await exchange.send(part)
        await (exchange.abort() if cut else exchange.finish())

    return answer


async def silent(exchange: Exchange) -> None:
    await exchange.read(1 << 20)
    await exchange.wait_gone()


async def silent_in_mid_stream(exchange: Exchange) -> None:
    await exchange.read(1 << 20)
    await exchange.start(200, [("content-type", "text/event-stream")])
    await exchange.send(b"data: {}\n\n")
    await exchange.wait_gone()


good = status(200, DONE)


@pytest.mark.parametrize("failure", [429, 500, 502, 503, 529, 408])
async def test_busy_is_tried_again_as_retry_after_says(failure: int) -> None:
    """A status that passes is tried again after the seconds that it names."""
    async with asking(status(failure, retry_after="7"), good) as session:
        await session.ask()
    assert session.waited == [7.0]


async def test_retry_after_may_be_a_date() -> None:
    """An HTTP date is taken on the wall clock."""
    async with asking(status(429, retry_after=formatdate(NOW + 12, usegmt=True)), good) as session:
        await session.ask()
    assert session.waited == [12.0]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        (" 3 ", 3.0),
        ("99999999999999999999", 300.0),
        (formatdate(NOW - 50, usegmt=True), 0.0),
        (formatdate(NOW + 5000, usegmt=True), 300.0),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("٣", None),
    ],
)
def test_retry_after_is_bounded(value: str, seconds: float | None) -> None:
    """At most 300 s, never below 0, and what is neither seconds nor a date says nothing."""
    assert retry_after(value, lambda: NOW) == seconds


def test_back_off_has_full_jitter_and_a_cap() -> None:
    """Without a wish: between 0 and a bound that doubles from 1 s; five tries, then None."""
    waits = [Backoff(random.Random(seed)).after(CallCut()) for seed in range(200)]
    assert all(wait is not None and 0 <= wait <= 1 for wait in waits)
    backoff = Backoff(random.Random(3), retries=40)
    bounds = [min(30.0, 2.0**n) for n in range(40)]
    assert all((backoff.after(CallCut()) or 0) <= bound for bound in bounds)
    assert backoff.after(CallCut()) is None


def test_a_refusal_by_the_door_itself_spends_no_try() -> None:
    """`local_capacity` reached no provider: it waits a little over what was told, as often as it takes."""
    backoff = Backoff(random.Random(1))
    waits = [backoff.after(CallBusy("full", retry_after=1, local=True)) for _ in range(50)]
    assert all(wait is not None and 1 <= wait <= 2 for wait in waits)
    assert backoff.spent == 0


async def test_local_capacity_is_known_by_its_code() -> None:
    """Ten refusals by the door for want of room are outlived."""
    full = status(429, {"code": "local_capacity"}, unread=True, retry_after="1")
    async with asking(*[full] * 10, good) as session:
        await session.ask()
    assert len(session.waited) == 10


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (streamed(b"data: {}\n\n", cut=True), "the answer broke off"),
        (streamed(b"data: {}\n\n"), "the stream ended without its last event"),
        (streamed(), "the stream ended without its last event"),
        (streamed(STREAMED[:-1]), "the stream ended without its last event"),
        (streamed(b"data: nonsense\n\n"), "the provider sent something that is not JSON"),
        (streamed(b'data: {"type":"error","message":"overloaded"}\n\n'), "the provider reported: error overloaded"),
        (status(200, []), "the provider sent something that is not a JSON object"),
        (status(200, {}), "the answer has no output"),
        (silent, "nothing came for 0 s"),
        (silent_in_mid_stream, "nothing came for 0 s"),
    ],
)
async def test_a_cut_call_is_tried_again(failure: Handler, reason: str) -> None:
    """A call that breaks, stays silent or ends without its last event is tried five times more, then unanswered."""
    patience = Patience(first_byte=0.05, gap=0.05)
    async with asking(failure, patience=patience) as session:
        with pytest.raises(CallUnanswered, match="no answer after 6 tries"):
            await session.ask()
    assert len(session.waited) == 5
    assert session.watch.told[0][0].startswith(reason)
    usage = session.usage.of("m")
    assert (usage.calls, usage.answered, usage.retries) == (6, 0, 5)


async def test_nobody_listens() -> None:
    """A door that is not there counts as a cut call."""
    async with asking(good) as session:
        pass
    with pytest.raises(CallUnanswered, match="the door cannot be reached"):
        await session.ask()


@pytest.mark.parametrize(
    ("code", "body", "error"),
    [
        (401, {}, DoorClosed),
        (403, {"code": "model_not_allowed"}, DoorClosed),
        (409, {}, DoorClosed),
        (400, {"error": {"message": "no such field"}}, CallRefused),
        (404, {"detail": "no such model"}, CallRefused),
        (413, {"code": "request_too_large"}, ContextFull),
        (400, {"error": {"code": "context_length_exceeded"}}, ContextFull),
        (400, {"type": "error", "error": {"message": "prompt is too long: 9 > 8"}}, ContextFull),
    ],
)
async def test_what_is_final(code: int, body: dict[str, Any], error: type[CallFault]) -> None:
    """A refusal for good is not tried again."""
    async with asking(status(code, body)) as session:
        with pytest.raises(error) as refused:
            await session.ask()
    assert type(refused.value) is error
    assert session.waited == []
    assert session.usage.of("m").calls == 1


async def test_a_body_that_nobody_reads_does_not_hide_the_refusal() -> None:
    """A large call that is refused at its head is answered by the refusal, not by a broken connection."""
    async with asking(status(413, {"code": "request_too_large"}, unread=True)) as session:
        session.transcript.add(wire_named("responses").user("x" * 8_000_000))
        with pytest.raises(ContextFull):
            await session.ask()


async def test_what_a_provider_refuses_is_left_out_for_good() -> None:
    """Sealed reasoning first, then streaming: each refused field is left out of every later call."""
    bodies: list[dict[str, Any]] = []

    async def picky(exchange: Exchange) -> None:
        bodies.append(json.loads(await exchange.read(1 << 20) or b""))
        complaint = "stream must be false" if bodies[-1]["stream"] else None
        if "include" in bodies[-1]:
            complaint = "Encrypted content is not supported with this model."
        refused = json.dumps({"error": {"message": complaint}}).encode()
        await exchange.respond(400 if complaint else 200, [], refused if complaint else json.dumps(DONE).encode())

    async with asking(picky) as session:
        await session.ask()
        await session.ask()
    assert [("include" in body, body["stream"]) for body in bodies] == [
        (True, True),
        (False, True),
        (False, False),
        (False, False),
    ]


@pytest.mark.parametrize(("url", "key"), [("", "k"), ("https://127.0.0.1", "k"), ("http://", "k"), ("http://x", "")])
def test_a_door_is_an_http_address_with_a_key(url: str, key: str) -> None:
    """Anything else is refused at start."""
    with pytest.raises(InputsUnusable):
        Door.at(url, key)


def test_messages_keeps_thinking_and_signature() -> None:
    """Thinking blocks go back unchanged; broken arguments go back as an empty object and are told as written."""
    wire = wire_named("messages")
    events = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "sig"}},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "c", "name": "ls", "input": {}},
        },
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a'}},
        {"type": "message_stop"},
    ]
    turn = _read("messages", events)
    sent = json.loads(b"".join(_entry_bytes(turn)))
    assert sent["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "tool_use", "id": "c", "name": "ls", "input": {}},
    ]
    assert turn.calls[0].arguments == '{"a'
    assert wire.headers("k") == [("x-api-key", "k"), ("anthropic-version", "2023-06-01")]


def test_responses_gives_back_sealed_reasoning_only() -> None:
    """Ids are left out, sealed reasoning goes back, other reasoning and unfinished calls do not."""
    items = [
        {"type": "reasoning", "id": "r1", "summary": [], "encrypted_content": "sealed"},
        {"type": "reasoning", "id": "r2", "summary": []},
        {"type": "function_call", "id": "f1", "call_id": "c1", "name": "ls", "arguments": "{}"},
        {"type": "function_call", "id": "f2", "call_id": "c2", "name": "ls", "arguments": "{", "status": "incomplete"},
        {"type": "web_search_call", "id": "w"},
    ]
    done = [{"type": "response.output_item.done", "item": item} for item in items]
    turn = _read("responses", [*done, {"type": "response.incomplete", "response": {}}])
    assert json.loads(b"[" + b"".join(_entry_bytes(turn)) + b"]") == [
        {"type": "reasoning", "summary": [], "encrypted_content": "sealed"},
        {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": "{}"},
    ]
    assert [call.id for call in turn.calls] == ["c1"]


def test_chat_takes_calls_without_an_index() -> None:
    """A provider that leaves the index out tells a new call by its id."""
    deltas: list[dict[str, Any]] = [
        {"id": "a", "function": {"name": "ls", "arguments": "{}"}},
        {"id": "b", "function": {"name": "read", "arguments": '{"path"'}},
        {"function": {"arguments": ': "x"}'}},
    ]
    events: list[Any] = [{"choices": [{"delta": {"tool_calls": [delta]}}]} for delta in deltas]
    turn = _read("chat", [*events, "[DONE]"])
    assert [(call.id, call.name, call.input()) for call in turn.calls] == [
        ("a", "ls", {}),
        ("b", "read", {"path": "x"}),
    ]


def _read(wire: str, events: list[Any]) -> Turn:
    reader = wire_named(wire).reader()
    ends = [reader.feed(Frame("message", (e if isinstance(e, str) else json.dumps(e)).encode())) for e in events]
    assert ends == [False] * (len(events) - 1) + [True]
    return reader.turn()


def _entry_bytes(turn: Turn) -> list[bytes]:
    transcript = Transcript()
    transcript.add(turn.entry)
    return list(transcript.chunks())
