"""The wire of `POST /v1/responses` (OpenAI API reference: "Responses", "Streaming events")."""

import json
from collections.abc import Iterator
from typing import Any

from driver.stub.errors import Rejected
from driver.stub.model.conversation import (
    Conversation,
    Reply,
    count_turns,
    items,
    model_of,
    opening,
    pieces,
    text_of,
    tool_names,
)
from driver.stub.model.shell import shell_of


def read(body: dict[str, Any]) -> Conversation:
    """The conversation of a request. Rejected (400) when it is none."""
    if body.get("previous_response_id"):
        raise Rejected(400, "invalid_request", "`previous_response_id`: no answer is stored here")
    given = body.get("input")
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else items(body, "input")
    system = [text_of(m.get("content")) for m in messages if _role(m) == "system"]
    return Conversation(
        model=model_of(body),
        stream=body.get("stream") is True,
        brief="\n".join([text_of(body.get("instructions")), *system, *opening(messages, _role)]),
        turn=count_turns(_role(message) for message in messages),
        tools=tool_names(body),
        shell=shell_of(body),
    )


def answer(reply: Reply) -> dict[str, Any]:
    """The complete answer."""
    return _response(reply, "completed", _output(reply))


def frames(reply: Reply, _: Conversation) -> Iterator[bytes]:
    """The answer as server-sent events, each numbered."""
    for number, event in enumerate(_events(reply)):
        data = json.dumps({**event, "sequence_number": number}, separators=(",", ":"))
        yield f"event: {event['type']}\ndata: {data}\n\n".encode()


def _events(reply: Reply) -> Iterator[dict[str, Any]]:
    yield {"type": "response.created", "response": _response(reply, "in_progress", [])}
    yield {"type": "response.in_progress", "response": _response(reply, "in_progress", [])}
    for index, item in enumerate(_output(reply)):
        emit = _message_events if item["type"] == "message" else _call_events
        yield from emit(index, item)
    yield {"type": "response.completed", "response": _response(reply, "completed", _output(reply))}


def _message_events(index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    part = item["content"][0]
    at = {"item_id": item["id"], "output_index": index, "content_index": 0}
    begun = {**item, "status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []}
    yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **at, "part": part}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _call_events(index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    at = {"item_id": item["id"], "output_index": index}
    begun = {**item, "status": "in_progress", "arguments": ""}
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    for piece in pieces(item["arguments"]):
        yield {"type": "response.function_call_arguments.delta", **at, "delta": piece}
    done = {"name": item["name"], "arguments": item["arguments"]}
    yield {"type": "response.function_call_arguments.done", **at, **done}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _output(reply: Reply) -> list[dict[str, Any]]:
    output: list[dict[str, Any]] = []
    if reply.text:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        message = {"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "status": "completed"}
        output.append({**message, "content": [part]})
    for call in reply.calls:
        item = {"id": f"fc_{call.id}", "type": "function_call", "status": "completed", "call_id": f"call_{call.id}"}
        output.append({**item, "name": call.name, "arguments": call.arguments})
    return output


def _response(reply: Reply, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": reply.created,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": reply.model,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "store": False,
        "usage": _usage(reply) if status == "completed" else None,
    }


def _usage(reply: Reply) -> dict[str, Any]:
    usage = reply.usage
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def _role(item: dict[str, Any]) -> str:
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        return "system" if role == "developer" else str(role)
    return "tool" if str(kind).endswith("_output") else "assistant"
