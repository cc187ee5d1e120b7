"""A door with a scripted provider behind it, on a real socket, and a small workspace to measure."""

import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import SocketAttribute

from driver.http1 import Exchange, serve

PATHS = {"/v1/responses": "responses", "/v1/chat/completions": "chat", "/v1/messages": "messages"}
KEY = "the-door-key"
MODEL = "test-model"


@dataclass(frozen=True)
class Say:
    """A complete answer: text and calls as (name, arguments)."""

    text: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    cut: bool = False  # break off before the last event
    bound: bool = False  # the provider ended it at its bound for one answer
    stall: bool = False  # stop before the last event, and never end
    after: float = 0.0  # seconds that the model thinks
    tokens: int = 100  # of input, as the provider counts them
    end: bool = False  # end cleanly before the last event


@dataclass(frozen=True)
class Refuse:
    """An answer that is not 200."""

    status: int
    body: dict[str, Any] = field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = (("retry-after", "0"),)
    after: float = 0.0


@dataclass(frozen=True)
class Raw:
    """An answer of 200 that is these bytes."""

    parts: tuple[bytes, ...]
    content_type: str = "text/event-stream"


@dataclass(frozen=True)
class Seen:
    """A model call as it came in."""

    wire: str
    body: dict[str, Any]
    headers: dict[str, str]
    raw: bytes = b""

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body["input" if self.wire == "responses" else "messages"])

    @property
    def text(self) -> str:
        return json.dumps(self.messages, ensure_ascii=False)

    @property
    def practices(self) -> list[str]:
        """The practices that the brief asks for."""
        return re.findall(r"\\n## Practice (\S+?)\\n", self.text)

    @property
    def turn(self) -> int:
        """How many answers of the model the transcript holds."""
        by_model = [item.get("role") == "assistant" or item.get("type") == "function_call" for item in self.messages]
        return sum(1 for answer, _ in groupby(by_model) if answer)


Script = Callable[[Seen], Say | Refuse | Raw]


@dataclass
class FakeDoor:
    """What the door saw, and how it answers.

    Without `admits` admission answers 503 for ever, and with `admission` it answers that. From a session's turn
    `stall_from_turn` on its calls stay open without an answer, and `stalled` is set.
    """

    script: Script
    url: str = ""
    admits: bool = True
    admission: tuple[int, bytes] | None = None
    calls: list[Seen] = field(default_factory=list)
    posted: list[dict[str, Any]] = field(default_factory=list)
    admissions: int = 0
    stall_from_turn: int = 1000
    stalled: anyio.Event = field(default_factory=anyio.Event)
    open: int = 0
    most_open: int = 0

    async def handle(self, exchange: Exchange) -> None:
        """One call. `most_open` is how many there were at once."""
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await self._handle(exchange)
        finally:
            self.open -= 1

    async def _handle(self, exchange: Exchange) -> None:
        body = await exchange.read(64 * 1024 * 1024)
        assert body is not None
        if exchange.request.path == "/review/observations":
            await self._admit(exchange, json.loads(body))
            return
        seen = Seen(PATHS[exchange.request.path], json.loads(body), dict(exchange.request.headers), bytes(body))
        self.calls.append(seen)
        if seen.turn >= self.stall_from_turn:
            self.stalled.set()
            await exchange.wait_gone()
            return
        reply = self.script(seen)
        await anyio.sleep(0 if isinstance(reply, Raw) else reply.after)
        if isinstance(reply, Refuse):
            await exchange.respond(
                reply.status, [("content-type", "application/json"), *reply.headers], json.dumps(reply.body).encode()
            )
        elif isinstance(reply, Raw):
            await exchange.start(200, [("content-type", reply.content_type)])
            for part in reply.parts:
                await exchange.send(part)
            await exchange.finish()
        elif seen.body["stream"]:
            await _stream(exchange, seen.wire, reply)
        else:
            whole = json.dumps(WHOLE[seen.wire](reply)).encode()
            await exchange.respond(200, [("content-type", "application/json")], whole)

    async def _admit(self, exchange: Exchange, body: dict[str, Any]) -> None:
        self.admissions += 1
        if not self.admits:
            await exchange.respond(503, [("retry-after", "0")])
            return
        self.posted.append(body)
        if self.admission is not None:
            await exchange.respond(self.admission[0], [("content-type", "application/json")], self.admission[1])
            return
        admitted = [{"index": n, "id": f"o{n}"} for n, _ in enumerate(body["observations"])]
        answer = {"digest": "sha-256=:x:", "admitted": admitted, "refused": []}
        await exchange.respond(200, [("content-type", "application/json")], json.dumps(answer).encode())


@asynccontextmanager
async def fake_door(script: Script, **options: Any) -> AsyncIterator[FakeDoor]:
    """A door that listens on loopback until the block is left."""
    door = FakeDoor(script, **options)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.listeners[0].extra(SocketAttribute.local_port)
    door.url = f"http://127.0.0.1:{port}"
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(serve, listener.listeners[0], door.handle)
        yield door
        tasks.cancel_scope.cancel()


async def _stream(exchange: Exchange, wire: str, reply: Say) -> None:
    events = EVENTS[wire](reply)
    if reply.cut or reply.end or reply.stall:
        events = events[:-1]
    await exchange.start(200, [("content-type", "text/event-stream; charset=utf-8")])
    data = "".join(events).encode()
    # Split where it hurts: in the middle of events, lines and characters.
    for start in range(0, len(data), 37):
        await exchange.send(data[start : start + 37])
    if reply.stall:
        await exchange.wait_gone()
    elif reply.cut:
        await exchange.abort()
    else:
        await exchange.finish()


def _event(value: dict[str, Any], name: str | None = None) -> str:
    prefix = f"event: {name}\n" if name else ""
    return f"{prefix}data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _responses_items(reply: Say) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.text:
        content = [{"type": "output_text", "text": reply.text, "annotations": []}]
        items.append({"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": content})
    for number, (name, arguments) in enumerate(reply.calls):
        call = {"call_id": f"c{number}", "name": name, "arguments": _arguments(arguments)}
        items.append({"type": "function_call", "id": f"f{number}", "status": "completed", **call})
    return items


def _responses_usage(reply: Say) -> dict[str, Any]:
    return {
        "input_tokens": reply.tokens,
        "output_tokens": 10,
        "input_tokens_details": {"cached_tokens": 40},
        "output_tokens_details": {"reasoning_tokens": 3},
    }


def _responses_events(reply: Say) -> list[str]:
    events = [_event({"type": "response.created", "response": {}}, "response.created"), ": keep-alive\n\n"]
    for place, item in enumerate(_responses_items(reply)):
        delta = {"type": "response.output_text.delta", "delta": "…"}
        events.append(_event(delta, "response.output_text.delta"))
        done = {"type": "response.output_item.done", "output_index": place, "item": item}
        events.append(_event(done, "response.output_item.done"))
    name = "response.incomplete" if reply.bound else "response.completed"
    last = {"type": name, "response": {**_responses_end(reply), "usage": _responses_usage(reply)}}
    return [*events, _event(last, name)]


def _responses_end(reply: Say) -> dict[str, Any]:
    if reply.bound:
        return {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    return {"status": "completed"}


def _responses_whole(reply: Say) -> dict[str, Any]:
    end = _responses_end(reply)
    return {**end, "error": None, "output": _responses_items(reply), "usage": _responses_usage(reply)}


def _chat_usage(reply: Say) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.tokens,
        "completion_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 40},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }


def _chat_events(reply: Say) -> list[str]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": letter} for letter in reply.text]
    for number, (name, arguments) in enumerate(reply.calls):
        text = _arguments(arguments)
        first = {"index": number, "id": f"c{number}", "type": "function", "function": {"name": name, "arguments": ""}}
        deltas.append({"tool_calls": [first]})
        parts = ({"index": number, "function": {"arguments": part}} for part in (text[:7], text[7:]))
        deltas.extend({"tool_calls": [part]} for part in parts)
    events = [_event({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    events.append(_event({"choices": [{"index": 0, "delta": {}, "finish_reason": _finish(reply)}]}))
    events.append(_event({"choices": [], "usage": _chat_usage(reply)}))
    return [*events, "data: [DONE]\n\n"]


def _chat_whole(reply: Say) -> dict[str, Any]:
    calls = [
        {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": _arguments(arguments)}}
        for number, (name, arguments) in enumerate(reply.calls)
    ]
    message = {"role": "assistant", "content": reply.text or None, "tool_calls": calls or None}
    return {"choices": [{"index": 0, "message": message, "finish_reason": _finish(reply)}], "usage": _chat_usage(reply)}


def _finish(reply: Say) -> str:
    return "length" if reply.bound else "stop"


def _messages_events(reply: Say) -> list[str]:
    cached = {"cache_creation_input_tokens": 10, "cache_read_input_tokens": 40}
    usage = {"input_tokens": reply.tokens - 50, "output_tokens": 1, **cached}
    events = [_event({"type": "message_start", "message": {"usage": usage}}, "message_start"), _event({"type": "ping"})]
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if reply.text:
        blocks.append(({"type": "text", "text": ""}, [{"type": "text_delta", "text": part} for part in reply.text]))
    for number, (name, arguments) in enumerate(reply.calls):
        text = _arguments(arguments)
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in ("", text[:7], text[7:])]
        blocks.append(({"type": "tool_use", "id": f"c{number}", "name": name, "input": {}}, deltas))
    for place, (start, deltas) in enumerate(blocks):
        events.append(_event({"type": "content_block_start", "index": place, "content_block": start}))
        events += [_event({"type": "content_block_delta", "index": place, "delta": delta}) for delta in deltas]
        events.append(_event({"type": "content_block_stop", "index": place}))
    events.append(_event({"type": "message_delta", "delta": _messages_end(reply), "usage": {"output_tokens": 10}}))
    return [*events, _event({"type": "message_stop"}, "message_stop")]


def _messages_whole(reply: Say) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
    for number, (name, arguments) in enumerate(reply.calls):
        content.append({"type": "tool_use", "id": f"c{number}", "name": name, "input": arguments})
    usage = {"input_tokens": reply.tokens, "output_tokens": 10}
    return {"type": "message", "content": content, "usage": usage, **_messages_end(reply)}


def _messages_end(reply: Say) -> dict[str, Any]:
    return {"stop_reason": "max_tokens" if reply.bound else "x"}


EVENTS = {"responses": _responses_events, "chat": _chat_events, "messages": _messages_events}
WHOLE = {"responses": _responses_whole, "chat": _chat_whole, "messages": _messages_whole}


def met(slug: str, **more: Any) -> dict[str, Any]:
    """An observation that is good as it is."""
    return {"practiceSlug": slug, "outcome": "MET", "summary": f"{slug} is met.", "citations": [], **more}


def report(*items: Any) -> tuple[str, Any]:
    """A call of report_observation."""
    return ("report_observation", {"observations": list(items)})


def report_all(seen: Seen) -> Say:
    """The script of a model that is done in one turn."""
    return Say(calls=(report(*(met(slug) for slug in seen.practices)),))


def make_workspace(root: Path, practices: dict[str, str]) -> Path:
    """A workspace with one changed file and these practices (slug to area)."""
    files = {
        "task.json": json.dumps(
            {
                "schemaVersion": 3,
                "jobId": "job-1",
                "workspaceId": "w-1",
                "prompt": "Review the change.",
                "pullRequestNumber": 7,
                "repositoryFullName": "owner/name",
                "contextRoot": "context",
                "repositoryRoot": "repos/reviewed",
                "manifest": "INDEX.json",
                "practiceIndex": "inputs/practices/index.json",
                "compositionRequest": "inputs/composition.json",
                "preparedFeedback": "inputs/feedback.json",
                "precomputeScripts": "inputs/precompute",
            }
        ),
        "context/metadata.json": '{"title": "Add a greeting"}',
        "repos/reviewed/src/hello.py": "def hello(name):\n    return 'hello ' + name\n\n\ndef bye():\n    return 1\n",
        "inputs/practices/index.json": json.dumps(
            [{"slug": slug, "area": area, "title": f"Title of {slug}"} for slug, area in practices.items()]
        ),
        **{f"inputs/practices/{slug}.md": f"Criteria of {slug}." for slug in practices},
        "work/change/diff.patch": "diff --git a/src/hello.py b/src/hello.py\n[L1] +def hello(name):\n",
        "work/change/diff_stat.txt": " src/hello.py | 1 +\n",
        "work/change/files.json": "[]",
        "work/precompute/lint.json": '{"note": "look at hello.py"}',
        "work/precompute/index.json": '[{"script": "lint", "status": "ok", "reason": null}]',
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "out").mkdir()
    return root


@dataclass
class Ended:
    """How a program ended, and what it left."""

    exit: int
    output: str
    errors: str
    out: Path

    def file(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.out / name).read_text())
        return document


async def measure(workspace: Path, door: FakeDoor, wire: str = "responses", **environment: str) -> Ended:
    """Run the real measuring program as a real process."""
    done = await anyio.run_process(command(wire), cwd=workspace, check=False, env=surroundings(door) | environment)
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode(), workspace / "out")


def command(wire: str = "responses") -> list[str]:
    """The program's command line."""
    sizes = ["--session-heap", str(256 * 1024 * 1024), "--session-size", str(3 * 1024 * 1024)]
    return [sys.executable, "-I", "-m", "kinds.programs.measure", "--task", "task.json", "--wire", wire, *sizes]


def surroundings(door: FakeDoor) -> dict[str, str]:
    """The program's environment."""
    return {
        "DRIVER_DOOR_URL": door.url,
        "DRIVER_DOOR_KEY": KEY,
        "DRIVER_MODEL": MODEL,
        "DRIVER_WORK_SECONDS": "60",
        "LANG": "C.UTF-8",
    }
