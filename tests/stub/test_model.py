"""The scripted model on its three wires, read as a client of each would."""

import json
from typing import Any

import httpx
import pytest

from driver.stub.model.report import added_lines
from tests.stub.support import Caller, calling, code_of, fault

pytestmark = pytest.mark.anyio

MODEL = "scripted-model"
USAGE = {"input": 100, "output": 20, "cached": 30, "reasoning": 5}
LONG = "word " * 30
ARGUMENTS = {"path": "repos/reviewed/a.py", "note": "é" * 60}
BOTH = {"text": LONG, "calls": [{"name": "read", "arguments": ARGUMENTS}], "usage": USAGE}

BRIEF = """\
# Change

`work/change/diff.patch`
| diff --git a/a.py b/a.py
| --- a/a.py
| +++ b/a.py
| @@ -1,2 +1,4 @@
| [L1]  import os
| [L-] -print("old")
| [L2] +try:
| [L3] +    go()
| [L4] +except:
| [L5]  # TODO: not of this change

# Practices

## Practice errors-are-specific

## Practice no-open-ends

## Practice tests-come-along

## Practice of-somebody-else
"""
TOOLS = ["read", "report_observation"]


def scenario(*turns: dict[str, Any], **facts: Any) -> dict[str, Any]:
    return {"model": {"turns": list(turns)}, **facts}


def events(answer: httpx.Response) -> list[tuple[str, Any]]:
    """The server-sent events of an answer: name and decoded data; `[DONE]` stays text."""
    assert answer.headers["content-type"] == "text/event-stream"
    frames = answer.text.removesuffix("\n\n").split("\n\n")
    read = []
    for frame in frames:
        fields = dict(line.split(": ", 1) for line in frame.split("\n"))
        data = fields["data"]
        read.append((fields.get("event", ""), data if data == "[DONE]" else json.loads(data)))
    return read


async def ask(caller: Caller, path: str, message: dict[str, Any]) -> httpx.Response:
    answer = await caller.model(path, {"model": MODEL, **message})
    assert answer.status_code == 200, answer.text
    return answer


async def test_responses_not_streamed() -> None:
    """The whole answer holds the message, the call and the usage."""
    async with calling(scenario(BOTH)) as caller:
        await caller.next()
        answer = (await ask(caller, "responses", {"input": "hello"})).json()
        message, call = answer["output"]
        assert (answer["object"], answer["status"], answer["model"]) == ("response", "completed", MODEL)
        assert message["content"][0] == {"type": "output_text", "text": LONG, "annotations": [], "logprobs": []}
        assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "read", ARGUMENTS)
        assert answer["usage"] == {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 30},
            "output_tokens": 20,
            "output_tokens_details": {"reasoning_tokens": 5},
            "total_tokens": 120,
        }


async def test_responses_streamed() -> None:
    """The events come in the wire's order, numbered, and the last one holds what the deltas add up to."""
    async with calling(scenario(BOTH)) as caller:
        await caller.next()
        answer = await ask(caller, "responses", {"input": [{"role": "user", "content": "hello"}], "stream": True})
        read = events(answer)
        assert all(name == data["type"] for name, data in read)
        assert [data["sequence_number"] for _, data in read] == list(range(len(read)))
        order = list(dict.fromkeys(name for name, _ in read))
        assert order == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.completed",
        ]
        text = "".join(data["delta"] for name, data in read if name == "response.output_text.delta")
        arguments = "".join(data["delta"] for name, data in read if name.endswith("arguments.delta"))
        completed = read[-1][1]["response"]
        assert (text, json.loads(arguments)) == (LONG, ARGUMENTS)
        done = [data["item"] for name, data in read if name == "response.output_item.done"]
        assert completed["output"] == done
        assert completed["usage"]["total_tokens"] == 120
        assert read[0][1]["response"]["usage"] is None


async def test_chat_not_streamed() -> None:
    """The choice holds content, tool calls and why it stopped."""
    async with calling(scenario(BOTH)) as caller:
        await caller.next()
        answer = (await ask(caller, "chat/completions", {"messages": [{"role": "user", "content": "hello"}]})).json()
        choice = answer["choices"][0]
        assert (answer["object"], choice["finish_reason"]) == ("chat.completion", "tool_calls")
        assert choice["message"]["content"] == LONG
        function = choice["message"]["tool_calls"][0]["function"]
        assert (function["name"], json.loads(function["arguments"])) == ("read", ARGUMENTS)
        assert answer["usage"]["total_tokens"] == 120
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 30}


@pytest.mark.parametrize("asked", [True, False])
async def test_chat_streamed(asked: bool) -> None:
    """The chunks add up; usage comes in a chunk of its own, only when it was asked for, and `[DONE]` ends it."""
    options = {"stream_options": {"include_usage": True}} if asked else {}
    message = {"messages": [{"role": "user", "content": "hello"}], "stream": True, **options}
    async with calling(scenario(BOTH)) as caller:
        await caller.next()
        read = events(await ask(caller, "chat/completions", message))
    assert read[-1] == ("", "[DONE]")
    chunks = [data for _, data in read[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content") or "" for delta in deltas) == LONG
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert (calls[0]["index"], calls[0]["type"], calls[0]["function"]["name"]) == (0, "function", "read")
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == ARGUMENTS
    finished = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]]
    assert finished[-1] == "tool_calls"
    assert set(finished[:-1]) == {None}
    assert [chunk["usage"]["total_tokens"] for chunk in chunks if chunk.get("usage")] == ([120] if asked else [])


async def test_messages_not_streamed() -> None:
    """The content holds text and tool use; what the cache gave is not counted as input."""
    message = {"max_tokens": 10, "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}
    async with calling(scenario(BOTH)) as caller:
        await caller.next()
        answer = (await ask(caller, "messages", message)).json()
    text, use = answer["content"]
    assert (answer["type"], answer["role"], answer["stop_reason"]) == ("message", "assistant", "tool_use")
    assert text == {"type": "text", "text": LONG}
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "read", ARGUMENTS)
    assert (answer["usage"]["input_tokens"], answer["usage"]["cache_read_input_tokens"]) == (70, 30)
    assert answer["usage"]["output_tokens"] == 20


async def test_messages_streamed() -> None:
    """The events come in the wire's order, and each block adds up."""
    message = {"max_tokens": 10, "messages": [{"role": "user", "content": "hello"}], "stream": True}
    async with calling(scenario(BOTH)) as caller:
        await caller.next()
        read = events(await ask(caller, "messages", message))
    names = [name for name, _ in read]
    assert all(name == data["type"] for name, data in read)
    assert [name for name, before in zip(names, [None, *names], strict=False) if name != before] == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    deltas = [data["delta"] for name, data in read if name == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == LONG
    assert json.loads("".join(delta.get("partial_json", "") for delta in deltas)) == ARGUMENTS
    assert read[0][1]["message"]["usage"]["input_tokens"] == 70
    assert read[-2][1]["delta"]["stop_reason"] == "tool_use"
    assert read[-2][1]["usage"] == {"output_tokens": 20}


async def test_models_and_token_counts() -> None:
    """The run's model is the only one listed, and tokens are counted."""
    async with calling() as caller:
        await caller.next()
        listed = await caller.http.get("/internal/agent/model/v1/models", headers=caller.claim_headers)
        assert [model["id"] for model in listed.json()["data"]] == [MODEL]
        counted = await ask(caller, "messages/count_tokens", {"messages": [{"role": "user", "content": "x" * 400}]})
        assert 100 <= counted.json()["input_tokens"] <= 130


async def test_a_call_made_again_gets_the_same_answer() -> None:
    """The turn is counted from the request: a repeat is the same turn, and the next one follows an answer."""
    async with calling(scenario({"text": "one"}, {"text": "two"})) as caller:
        await caller.next()
        user, answer = {"role": "user", "content": "hello"}, {"role": "assistant", "content": "one"}
        texts = []
        for given in ([user], [user], [user, answer, user], [user, answer, user, answer, user]):
            read = await ask(caller, "responses", {"input": given})
            texts.append(read.json()["output"][0]["content"][0]["text"])
        assert texts == ["one", "one", "two", "There is nothing left to say."]


async def test_sessions_are_told_apart() -> None:
    """A session whose beginning holds the match gets its own turns."""
    model = {"turns": [{"text": "other"}], "session": [{"match": "robust", "turns": [{"text": "mine"}]}]}
    async with calling({"model": model}) as caller:
        await caller.next()
        for wire, message, expected in (
            ("responses", {"instructions": "robust", "input": "x"}, "mine"),
            ("messages", {"system": "s", "messages": [{"role": "user", "content": "robust"}]}, "mine"),
            ("chat/completions", {"messages": [{"role": "user", "content": "plain"}]}, "other"),
        ):
            assert expected in (await ask(caller, wire, message)).text


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"model": 1}', b'{"model": "m"}', b'{"model": "m", "input": [1]}']
)
@pytest.mark.parametrize("path", ["responses", "chat/completions", "messages"])
async def test_what_is_no_request_is_refused(path: str, body: bytes) -> None:
    """A body that is no request of the wire reads 400 and ends nothing."""
    async with calling() as caller:
        await caller.next()
        url = f"/internal/agent/model/v1/{path}"
        answer = await caller.http.post(url, headers=caller.claim_headers, content=body)
        assert (answer.status_code, code_of(answer)) == (400, "invalid_request")


async def test_a_malformed_frame_is_sent_once() -> None:
    """The second frame of the struck stream is no JSON, and the rest is whole."""
    message = {"input": "hello", "stream": True}
    async with calling(scenario(BOTH, **fault("model", "malformed_frame"))) as caller:
        await caller.next()
        frames = (await ask(caller, "responses", message)).text.split("\n\n")
        with pytest.raises(json.JSONDecodeError):
            json.loads(frames[1].split("data: ")[1])
        again = await ask(caller, "responses", message)
        assert len(events(again)) == len(frames) - 2


async def test_a_model_call_is_fenced() -> None:
    """A claim that is over opens no call."""
    async with calling() as caller:
        await caller.next()
        caller.stub.state.runs.take_away("run-1")
        answer = await caller.model("responses", {"model": MODEL, "input": "hello"})
        assert (answer.status_code, code_of(answer)) == (409, "stale_claim")


def test_only_added_lines_count() -> None:
    """The rule sees the added lines of the change with their numbers, and nothing else of the brief."""
    lines = added_lines(BRIEF)
    assert [(line.path, line.number, line.text) for line in lines] == [
        ("a.py", 2, "try:"),
        ("a.py", 3, "    go()"),
        ("a.py", 4, "except:"),
    ]


async def test_the_rule_reads_reports_and_stops() -> None:
    """A session goes: a changed file is read, each practice gets one observation with a real line, a last word."""
    async with calling() as caller:
        await caller.next()
        tools = [{"type": "function", "name": name, "parameters": {}} for name in TOOLS]
        items: list[dict[str, Any]] = [{"role": "user", "content": BRIEF}]
        calls = []
        for _ in range(3):
            answer = (await ask(caller, "responses", {"input": items, "tools": tools})).json()
            items += answer["output"]
            for item in answer["output"]:
                if item["type"] == "function_call":
                    calls.append((item["name"], json.loads(item["arguments"])))
                    items.append({"type": "function_call_output", "call_id": item["call_id"], "output": "ok"})
        assert [name for name, _ in calls] == ["read", "report_observation"]
        assert calls[0][1] == {"path": "repos/reviewed/a.py"}
        assert items[-1]["content"][0]["text"] == "Each practice has its observation."
        first = {"path": "repos/reviewed/a.py", "startLine": 2, "endLine": 2, "quote": "try:"}
        caught = {"path": "repos/reviewed/a.py", "startLine": 4, "endLine": 4, "quote": "except:"}
        seen = [
            (o["practiceSlug"], o["outcome"], o.get("severity"), o["citations"]) for o in calls[1][1]["observations"]
        ]
        assert seen == [
            ("errors-are-specific", "NOT_MET", "MAJOR", [caught]),
            ("no-open-ends", "MET", None, [first]),
            ("tests-come-along", "NOT_MET", "MINOR", [first]),
            ("of-somebody-else", "MET", None, [first]),
        ]
