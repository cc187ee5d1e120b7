"""The wire of `POST /v1/chat/completions` (OpenAI API reference: "Chat", "Streaming")."""

import json
from collections.abc import Iterator
from typing import Any

from driver.stub.model.conversation import (
    Conversation,
    Reply,
    count_turns,
    items,
    model_of,
    opening,
    pieces,
    role_of,
    text_of,
    tool_names,
)
from driver.stub.model.shell import shell_of


def read(body: dict[str, Any]) -> Conversation:
    """The conversation of a request. Rejected (400) when it is none."""
    messages = items(body, "messages")
    system = [text_of(m.get("content")) for m in messages if m.get("role") in ("system", "developer")]
    options = body.get("stream_options")
    return Conversation(
        model=model_of(body),
        stream=body.get("stream") is True,
        brief="\n".join([*system, *opening(messages, role_of)]),
        turn=count_turns(role_of(message) for message in messages),
        tools=tool_names(body),
        shell=shell_of(body),
        stream_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def answer(reply: Reply) -> dict[str, Any]:
    """The complete answer."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.calls:
        message["tool_calls"] = [
            {"id": f"call_{c.id}", "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in reply.calls
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(reply)}
    return {**_head(reply, "chat.completion"), "choices": [choice], "usage": _usage(reply)}


def frames(reply: Reply, conversation: Conversation) -> Iterator[bytes]:
    """The answer as server-sent events, ended by `[DONE]`."""
    head = _head(reply, "chat.completion.chunk")
    if conversation.stream_usage:
        head["usage"] = None
    for delta in _deltas(reply):
        yield _frame({**head, "choices": [_choice(delta, None)]})
    yield _frame({**head, "choices": [_choice({}, _finish(reply))]})
    if conversation.stream_usage:
        yield _frame({**head, "choices": [], "usage": _usage(reply)})
    yield b"data: [DONE]\n\n"


def _deltas(reply: Reply) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": "" if reply.text else None, "refusal": None}
    for piece in pieces(reply.text):
        yield {"content": piece}
    for index, call in enumerate(reply.calls):
        begun = {"index": index, "id": f"call_{call.id}", "type": "function"}
        yield {"tool_calls": [{**begun, "function": {"name": call.name, "arguments": ""}}]}
        for piece in pieces(call.arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _frame(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def _choice(delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _finish(reply: Reply) -> str:
    return "tool_calls" if reply.calls else "stop"


def _head(reply: Reply, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.id}", "object": kind, "created": reply.created, "model": reply.model}


def _usage(reply: Reply) -> dict[str, Any]:
    usage = reply.usage
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
