"""The messages wire (`POST /v1/messages`, version 2023-06-01).

The results of one turn go back in one user message, and thinking blocks go back unchanged with their
signature, as the wire demands.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from kinds.programs.errors import CallCut, ContextFull
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
    tells_full,
)

_VERSION: Final = "2023-06-01"
# The wire demands a bound; this one is below the output limit of every current model.
_ANSWER_TOKENS: Final = 8192
_USER_OPENING: Final = b'{"role":"user","content":['
_ASSISTANT_OPENING: Final = b'{"role":"assistant","content":['
_CLOSING: Final = b"]}"


class MessagesWire:
    """See `wires.Wire`."""

    path = "/v1/messages"

    def headers(self, key: str) -> list[tuple[str, str]]:
        return [("x-api-key", key), ("anthropic-version", _VERSION)]

    def frame(self, model: str, system: str, tools: Sequence[Tool], features: Features) -> tuple[bytes, bytes]:
        request = {
            "model": model,
            "max_tokens": _ANSWER_TOKENS,
            "system": system,
            "tools": [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in tools
            ],
            "stream": features.stream,
        }
        return encode(request)[:-1] + b',"messages":[', b"]}"

    def user(self, text: str, *, lasting: bool = False) -> Entry:
        block: dict[str, Any] = {"type": "text", "text": text}
        if lasting:
            block["cache_control"] = {"type": "ephemeral"}
        return Entry([Item(encode(block))], _USER_OPENING, _CLOSING)

    def results(self, results: Sequence[ToolResult]) -> Entry:
        items = [Item(_output(r, r.text), None if r.short is None else _output(r, r.short)) for r in results]
        return Entry(items, _USER_OPENING, _CLOSING)

    def reader(self) -> "_Reader":
        return _Reader()

    def whole(self, answer: dict[str, Any]) -> Turn:
        if answer.get("type") == "error":
            raise fault_in_stream(answer)
        cut = _is_cut(answer)
        if not isinstance(answer.get("content"), list):
            raise CallCut("the answer has no content")
        return _turn(listing(answer["content"]), mapping(answer.get("usage")), cut)


WIRE: Final = MessagesWire()


class _Block:
    """A content block as it grows."""

    def __init__(self, start: dict[str, Any], allowance: Allowance) -> None:
        self._start = start
        self._allowance = allowance
        self._parts: dict[str, list[str]] = {}

    def add(self, delta: dict[str, Any]) -> None:
        for name in ("text", "thinking", "signature", "partial_json"):
            if name in delta:
                self._parts.setdefault(name, []).append(self._allowance.text(delta[name]))

    def whole(self) -> dict[str, Any]:
        joined = {name: "".join(parts) for name, parts in self._parts.items()}
        arguments = joined.pop("partial_json", None)
        block = {**self._start, **{name: string(self._start.get(name)) + text for name, text in joined.items()}}
        if arguments is not None:
            block["input"] = arguments
        return block


class _Reader:
    def __init__(self) -> None:
        self._allowance = Allowance()
        self._blocks: dict[int, _Block] = {}
        self._usage: dict[str, Any] = {}
        self._cut = False

    def feed(self, frame: Frame) -> bool:
        event = decode(frame.data)
        kind = string(event.get("type")) or frame.event
        if kind == "content_block_start":
            self._allowance.spend(len(frame.data))
            self._blocks[count(event.get("index"))] = _Block(mapping(event.get("content_block")), self._allowance)
        elif kind == "content_block_delta":
            if (block := self._blocks.get(count(event.get("index")))) is not None:
                block.add(mapping(event.get("delta")))
        elif kind == "message_start":
            self._usage |= mapping(mapping(event.get("message")).get("usage"))
        elif kind == "message_delta":
            self._cut = _is_cut(mapping(event.get("delta"))) or self._cut
            # Its figures are totals, so they replace the first ones.
            self._usage |= {k: v for k, v in mapping(event.get("usage")).items() if v is not None}
        elif kind == "error":
            raise fault_in_stream(event)
        return kind == "message_stop"

    def turn(self) -> Turn:
        return _turn([block.whole() for _, block in sorted(self._blocks.items())], self._usage, self._cut)


def _turn(blocks: list[dict[str, Any]], usage: dict[str, Any], cut: bool) -> Turn:
    kept: list[dict[str, Any]] = []
    calls = []
    texts = []
    for block in blocks:
        kind = block.get("type")
        if kind == "text" and block.get("text"):
            texts.append(string(block["text"]))
            kept.append({"type": "text", "text": texts[-1]})
        elif kind == "tool_use":
            calls.append(ToolCall(string(block.get("id")), string(block.get("name")), _arguments(block.get("input"))))
            kept.append({"type": "tool_use", "id": calls[-1].id, "name": calls[-1].name, "input": calls[-1].input()})
        elif kind in ("thinking", "redacted_thinking"):
            kept.append({name: value for name, value in block.items() if not isinstance(value, dict | list)})
    entry = Entry([Item(encode(block)) for block in kept], _ASSISTANT_OPENING, _CLOSING)
    return Turn(text="".join(texts), calls=tuple(calls), usage=_usage(usage), entry=entry, cut=cut)


def _is_cut(message: dict[str, Any]) -> bool:
    """Whether the answer ended at `max_tokens`. One that the model's context cut short raises ContextFull."""
    reason = string(message.get("stop_reason"))
    if tells_full(reason):
        raise ContextFull(f"the answer was cut: {reason}")
    return reason == "max_tokens"


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(mapping(value))


def _output(result: ToolResult, text: str) -> bytes:
    return encode({"type": "tool_result", "tool_use_id": result.call.id, "content": text})


def _usage(usage: dict[str, Any]) -> Usage:
    cached = count(usage.get("cache_read_input_tokens"))
    return Usage(
        input=count(usage.get("input_tokens")) + count(usage.get("cache_creation_input_tokens")) + cached,
        output=count(usage.get("output_tokens")),
        cached=cached,
    )
