"""The Responses wire (`POST /v1/responses`), without state at the provider.

Items go back as they came, less their ids: nothing is stored, so an id would name nothing. Reasoning goes
back only when it is sealed (`encrypted_content`), which is the form that a stateless call accepts.
"""

from collections.abc import Sequence
from typing import Any, Final

from kinds.programs.errors import CallCut
from kinds.programs.sse import Frame
from kinds.programs.transcript import Entry, Item
from kinds.programs.wires import (
    Allowance,
    Features,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
    Usage,
    count,
    decode,
    encode,
    fault_in_stream,
    listing,
    mapping,
    string,
)

_LAST_EVENTS: Final = frozenset({"response.completed", "response.incomplete"})


class ResponsesWire:
    """See `wires.Wire`."""

    path = "/v1/responses"

    def headers(self, key: str) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {key}")]

    def frame(self, model: str, system: str, tools: Sequence[Tool], features: Features) -> tuple[bytes, bytes]:
        request: dict[str, Any] = {
            "model": model,
            "instructions": system,
            "tools": [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                    "strict": False,
                }
                for tool in tools
            ],
            "store": False,
            "stream": features.stream,
        }
        if features.sealed_reasoning:
            request["include"] = ["reasoning.encrypted_content"]
        return encode(request)[:-1] + b',"input":[', b"]}"

    def user(self, text: str, *, lasting: bool = False) -> Entry:
        content = [{"type": "input_text", "text": text}]
        return Entry([Item(encode({"type": "message", "role": "user", "content": content}))])

    def results(self, results: Sequence[ToolResult]) -> Entry:
        return Entry([Item(_output(r, r.text), None if r.short is None else _output(r, r.short)) for r in results])

    def reader(self) -> "_Reader":
        return _Reader()

    def whole(self, answer: dict[str, Any]) -> Turn:
        if answer.get("status") == "failed" or answer.get("error"):
            raise fault_in_stream(answer.get("error"))
        if not isinstance(answer.get("output"), list):
            raise CallCut("the answer has no output")
        return _turn(listing(answer["output"]), answer)


WIRE: Final = ResponsesWire()


class _Reader:
    def __init__(self) -> None:
        self._allowance = Allowance()
        self._items: list[dict[str, Any]] = []
        self._response: dict[str, Any] = {}

    def feed(self, frame: Frame) -> bool:
        # The type decides, and most events are deltas of what comes whole later: those are not decoded.
        if frame.event.endswith(".delta"):
            return False
        event = decode(frame.data)
        kind = string(event.get("type")) or frame.event
        if kind == "response.output_item.done":
            self._allowance.spend(len(frame.data))
            self._items.append(mapping(event.get("item")))
        elif kind in _LAST_EVENTS:
            self._response = mapping(event.get("response"))
            return True
        elif kind == "response.failed":
            raise fault_in_stream(mapping(event.get("response")).get("error"))
        elif kind == "error":
            raise fault_in_stream(event)
        return False

    def turn(self) -> Turn:
        return _turn(self._items or listing(self._response.get("output")), self._response)


def _turn(output: list[dict[str, Any]], response: dict[str, Any]) -> Turn:
    kept = [item for item in (_kept(item) for item in output) if item is not None]
    calls = [
        ToolCall(item["call_id"], item["name"], item["arguments"]) for item in kept if item["type"] == "function_call"
    ]
    return Turn(
        text="".join(part["text"] for item in kept if item["type"] == "message" for part in item["content"]),
        calls=tuple(calls),
        usage=_usage(mapping(response.get("usage"))),
        entry=Entry([Item(encode(item)) for item in kept]),
        cut=mapping(response.get("incomplete_details")).get("reason") == "max_output_tokens",
    )


def _kept(item: dict[str, Any]) -> dict[str, Any] | None:
    """The item as it goes back to the provider, or None when it cannot."""
    kind = item.get("type")
    if kind == "function_call" and item.get("status", "completed") == "completed":
        names = {name: string(item.get(name)) for name in ("call_id", "name", "arguments")}
        return {"type": "function_call", **names}
    if kind == "message":
        texts = [string(part.get("text")) for part in listing(item.get("content")) if part.get("type") == "output_text"]
        content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
        return {"type": "message", "role": "assistant", "content": content} if content else None
    if kind == "reasoning" and (sealed := string(item.get("encrypted_content"))):
        parts = listing(item.get("summary"))
        summary = [{"type": string(part.get("type")), "text": string(part.get("text"))} for part in parts]
        return {"type": "reasoning", "summary": summary, "encrypted_content": sealed}
    return None


def _output(result: ToolResult, text: str) -> bytes:
    return encode({"type": "function_call_output", "call_id": result.call.id, "output": text})


def _usage(usage: dict[str, Any]) -> Usage:
    return Usage(
        input=count(usage.get("input_tokens")),
        output=count(usage.get("output_tokens")),
        cached=count(mapping(usage.get("input_tokens_details")).get("cached_tokens")),
        reasoning=count(mapping(usage.get("output_tokens_details")).get("reasoning_tokens")),
    )
