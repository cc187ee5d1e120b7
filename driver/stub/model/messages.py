"""The wire of `POST /v1/messages` (Anthropic API reference: "Messages", "Streaming messages")."""

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
    return Conversation(
        model=model_of(body),
        stream=body.get("stream") is True,
        brief="\n".join([text_of(body.get("system")), *opening(messages, role_of)]),
        turn=count_turns(role_of(message) for message in messages),
        tools=tool_names(body),
        shell=shell_of(body),
    )


def answer(reply: Reply) -> dict[str, Any]:
    """The complete answer."""
    content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
    for call in reply.calls:
        tool = {"type": "tool_use", "id": f"toolu_{call.id}", "name": call.name}
        content.append({**tool, "input": _input(call.arguments)})
    return {**_head(reply), "content": content, "stop_reason": _stop(reply), "usage": _usage(reply, reply.usage.output)}


def frames(reply: Reply, _: Conversation) -> Iterator[bytes]:
    """The answer as server-sent events."""
    for event in _events(reply):
        yield f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n".encode()


def _events(reply: Reply) -> Iterator[dict[str, Any]]:
    message = {**_head(reply), "content": [], "stop_reason": None, "usage": _usage(reply, 1)}
    yield {"type": "message_start", "message": message}
    blocks = [({"type": "text", "text": ""}, "text_delta", "text", reply.text)] if reply.text else []
    for call in reply.calls:
        begun: dict[str, Any] = {"type": "tool_use", "id": f"toolu_{call.id}", "name": call.name, "input": {}}
        blocks.append((begun, "input_json_delta", "partial_json", call.arguments))
    for index, (begun, kind, name, text) in enumerate(blocks):
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        if index == 0:
            yield {"type": "ping"}
        for piece in pieces(text):
            yield {"type": "content_block_delta", "index": index, "delta": {"type": kind, name: piece}}
        yield {"type": "content_block_stop", "index": index}
    end = {"stop_reason": _stop(reply), "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": reply.usage.output}}
    yield {"type": "message_stop"}


def _head(reply: Reply) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "stop_sequence": None,
    }


def _stop(reply: Reply) -> str:
    return "tool_use" if reply.calls else "end_turn"


def _usage(reply: Reply, output: int) -> dict[str, Any]:
    """`input_tokens` leaves out what was read from the cache."""
    usage = reply.usage
    return {
        "input_tokens": max(usage.input - usage.cached, 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": output,
    }


def _input(arguments: str) -> Any:
    """Arguments that are no JSON go out as text: this wire has no other place for them."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
