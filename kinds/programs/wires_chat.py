"""The chat wire (`POST /v1/chat/completions`)."""

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

_DONE: Final = b"[DONE]"
_CUT: Final = "length"


class ChatWire:
    """See `wires.Wire`."""

    path = "/v1/chat/completions"

    def headers(self, key: str) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {key}")]

    def frame(self, model: str, system: str, tools: Sequence[Tool], features: Features) -> tuple[bytes, bytes]:
        request: dict[str, Any] = {
            "model": model,
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.parameters,
                    },
                }
                for tool in tools
            ],
            "stream": features.stream,
        }
        if features.stream and features.usage_in_stream:
            request["stream_options"] = {"include_usage": True}
        system_message = encode({"role": "system", "content": system})
        return encode(request)[:-1] + b',"messages":[' + system_message + b",", b"]}"

    def user(self, text: str, *, lasting: bool = False) -> Entry:
        return Entry([Item(encode({"role": "user", "content": text}))])

    def results(self, results: Sequence[ToolResult]) -> Entry:
        return Entry([Item(_output(r, r.text), None if r.short is None else _output(r, r.short)) for r in results])

    def reader(self) -> "_Reader":
        return _Reader()

    def whole(self, answer: dict[str, Any]) -> Turn:
        if answer.get("error"):
            raise fault_in_stream(answer)
        choices = listing(answer.get("choices"))
        if not choices:
            raise CallCut("the answer has no choices")
        message = mapping(choices[0].get("message"))
        calls = [_call(call) for call in listing(message.get("tool_calls"))]
        cut = choices[0].get("finish_reason") == _CUT
        return _turn(string(message.get("content")), calls, mapping(answer.get("usage")), cut)


WIRE: Final = ChatWire()


class _PendingCall:
    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []

    def add(self, delta: dict[str, Any], allowance: Allowance) -> None:
        function = mapping(delta.get("function"))
        self.id = self.id or allowance.text(delta.get("id"))
        self.name = self.name or allowance.text(function.get("name"))
        self.arguments.append(allowance.text(function.get("arguments")))


class _Reader:
    def __init__(self) -> None:
        self._allowance = Allowance()
        self._text: list[str] = []
        self._calls: dict[int, _PendingCall] = {}
        self._usage: dict[str, Any] = {}
        self._cut = False

    def feed(self, frame: Frame) -> bool:
        if frame.data.strip() == _DONE:
            return True
        event = decode(frame.data)
        if event.get("error"):
            raise fault_in_stream(event)
        self._usage = mapping(event.get("usage")) or self._usage
        for choice in listing(event.get("choices"))[:1]:
            self._cut = self._cut or choice.get("finish_reason") == _CUT
            delta = mapping(choice.get("delta"))
            self._text.append(self._allowance.text(delta.get("content")))
            for call in listing(delta.get("tool_calls")):
                self._calls.setdefault(self._place(call), _PendingCall()).add(call, self._allowance)
        return False

    def turn(self) -> Turn:
        calls = [ToolCall(call.id, call.name, "".join(call.arguments)) for _, call in sorted(self._calls.items())]
        return _turn("".join(self._text), calls, self._usage, self._cut)

    def _place(self, call: dict[str, Any]) -> int:
        """The call that a delta belongs to; some providers leave the index out and tell a new one by its id."""
        index = call.get("index")
        if isinstance(index, int):
            return index
        return len(self._calls) if call.get("id") else max(len(self._calls) - 1, 0)


def _call(call: dict[str, Any]) -> ToolCall:
    function = mapping(call.get("function"))
    return ToolCall(string(call.get("id")), string(function.get("name")), string(function.get("arguments")))


def _turn(text: str, calls: list[ToolCall], usage: dict[str, Any], cut: bool) -> Turn:
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _sound(call)}}
            for call in calls
        ]
    # An assistant message without content and calls is refused by most providers.
    items = [Item(encode(message))] if text or calls else []
    return Turn(text=text, calls=tuple(calls), usage=_usage(usage), entry=Entry(items), cut=cut)


def _sound(call: ToolCall) -> str:
    """The arguments as written, or an empty object: many providers parse them and refuse the whole call."""
    return call.arguments if call.input() else "{}"


def _output(result: ToolResult, text: str) -> bytes:
    return encode({"role": "tool", "tool_call_id": result.call.id, "content": text})


def _usage(usage: dict[str, Any]) -> Usage:
    return Usage(
        input=count(usage.get("prompt_tokens")),
        output=count(usage.get("completion_tokens")),
        cached=count(mapping(usage.get("prompt_tokens_details")).get("cached_tokens")),
        reasoning=count(mapping(usage.get("completion_tokens_details")).get("reasoning_tokens")),
    )
