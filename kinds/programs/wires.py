"""What the three model wires have in common.

A wire encodes what goes into a transcript and reads what comes back. It holds no connection and no
transcript: `model` sends, `session` decides.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Final, Protocol

from kinds.programs.errors import CallBusy, CallCut, CallRefused, ContextFull
from kinds.programs.sse import Frame
from kinds.programs.transcript import Entry

WIRES: Final = ("responses", "chat", "messages")

_MOST_TOKENS: Final = 10**12
# The door takes a request of 128 levels, and a transcript has some of its own.
_DEPTH: Final = 64
_ANSWER_CHARACTERS: Final = 4 * 1024 * 1024

# The type of a problem document that has none (RFC 9457, 4.2.1).
_NO_TYPE: Final = "about:blank"
_SHOWN_CHARACTERS: Final = 300

_CONTEXT_FULL: Final = (
    "context length",
    "context limit",
    "context size",
    "context window",
    "maximum context",
    "maximum number of tokens",
    "prompt is too long",
    "input is too long",
    "request too large",
)


@dataclass(frozen=True)
class Tool:
    """A tool as the model sees it. `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class ToolCall:
    """A call that the model asks for. `arguments` is JSON as the model wrote it, so it may be broken."""

    id: str
    name: str
    arguments: str

    def input(self) -> dict[str, Any]:
        """The arguments as an object, empty when they are none that may go back to a provider as JSON."""
        try:
            value = mapping(json.loads(self.arguments))
        except (ValueError, RecursionError):
            return {}
        return value if _is_shallow(value, _DEPTH) else {}


@dataclass(frozen=True)
class ToolResult:
    """The result of a call. `short` may stand in its place when the transcript must shrink."""

    call: ToolCall
    text: str
    short: str | None = None


@dataclass(frozen=True)
class Usage:
    """Tokens of one call, as the provider reports them. `cached` is part of `input`, `reasoning` of `output`."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0


@dataclass(frozen=True)
class Turn:
    """One answer of the model, and the entry that stands for it in the transcript.

    `cut` tells that the provider ended it at its bound for one answer.
    """

    text: str
    calls: tuple[ToolCall, ...]
    usage: Usage
    entry: Entry = field(repr=False)
    cut: bool = False


@dataclass(frozen=True)
class Features:
    """What a provider may refuse; each is left out once it did."""

    stream: bool = True
    usage_in_stream: bool = True
    sealed_reasoning: bool = True

    def without(self, complaint: str) -> "Features | None":
        """These features less the one that a refusal names, or None when it names none of them."""
        text = complaint.lower()
        if self.usage_in_stream and "stream_options" in text:
            return replace(self, usage_in_stream=False)
        if self.sealed_reasoning and ("encrypted" in text or "'include'" in text):
            return replace(self, sealed_reasoning=False)
        if self.stream and "stream" in text:
            return replace(self, stream=False)
        return None


class Allowance:
    """How much one streamed answer may still say: it is held whole until it is complete."""

    def __init__(self) -> None:
        self._left = _ANSWER_CHARACTERS

    def text(self, value: Any) -> str:
        """The text, or an empty one for what is none. Raises CallRefused once the answer is too long."""
        text = string(value)
        self.spend(len(text))
        return text

    def spend(self, characters: int) -> None:
        """Count what the answer holds besides. Raises CallRefused once it is too long."""
        self._left -= characters
        if self._left < 0:
            raise CallRefused(f"the answer says more than {_ANSWER_CHARACTERS:,} characters")


class Reader(Protocol):
    """Reads one streamed answer."""

    def feed(self, frame: Frame) -> bool:
        """Take one event. True once it was the last one. Raises CallCut, CallBusy, CallRefused or ContextFull."""
        ...

    def turn(self) -> Turn:
        """The answer; only after the last event."""
        ...


class Wire(Protocol):
    """One provider wire."""

    path: str

    def headers(self, key: str) -> list[tuple[str, str]]:
        """The headers that carry the key."""
        ...

    def frame(self, model: str, system: str, tools: Sequence[Tool], features: Features) -> tuple[bytes, bytes]:
        """What a request body has before and after the transcript's entries."""
        ...

    def user(self, text: str, *, lasting: bool = False) -> Entry:
        """A message to the model. `lasting` tells the provider that what is up to here will come again."""
        ...

    def results(self, results: Sequence[ToolResult]) -> Entry:
        """The results of all calls of one turn."""
        ...

    def reader(self) -> Reader:
        """A reader for one streamed answer."""
        ...

    def whole(self, answer: dict[str, Any]) -> Turn:
        """The turn in an answer that was not streamed. Raises CallCut when it holds none."""
        ...


def wire_named(name: str) -> Wire:
    """The wire of this name, one of WIRES. Only its module is imported."""
    wire: Wire = import_module(f"kinds.programs.wires_{name}").WIRE
    return wire


def encode(value: Any) -> bytes:
    """JSON as UTF-8. Half a surrogate pair, which UTF-8 cannot hold, becomes the JSON escape that it came from."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def decode(data: bytes) -> dict[str, Any]:
    """A JSON object of the provider. Raises CallCut when it is none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CallCut("the provider sent something that is not JSON") from error
    if not isinstance(value, dict):
        raise CallCut("the provider sent something that is not a JSON object")
    return value


def fault_in_stream(error: Any) -> CallBusy | ContextFull:
    """The exception for an error that a provider reports inside its answer."""
    text = explain(error)
    return ContextFull(text) if tells_full(text) else CallBusy(f"the provider reported: {text}")


def tells_full(complaint: str) -> bool:
    """Whether a refusal says that the transcript is longer than the model's context."""
    text = complaint.lower().replace("_", " ")
    return any(mark in text for mark in _CONTEXT_FULL)


def explain(error: Any) -> str:
    """A short line for an error object or a problem document."""
    if not isinstance(error, dict):
        return string(error)[:_SHOWN_CHARACTERS]
    inner = error.get("error")
    if isinstance(inner, dict):
        error = inner
    parts = [error.get(name) for name in ("code", "type", "message", "detail", "param")]
    words = [str(part) for part in parts if isinstance(part, str | int) and part and part != _NO_TYPE]
    return " ".join(words)[:_SHOWN_CHARACTERS]


def _is_shallow(value: Any, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not inner or (depth > 0 and all(_is_shallow(one, depth - 1) for one in inner))


def count(value: Any) -> int:
    """A number of tokens; what is not one, or cannot be meant, counts as zero."""
    return value if type(value) is int and 0 < value <= _MOST_TOKENS else 0


def mapping(value: Any) -> dict[str, Any]:
    """The object, or an empty one where a provider left it out."""
    return value if isinstance(value, dict) else {}


def listing(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; an empty one where a provider left it out."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def string(value: Any) -> str:
    """The text, or an empty one."""
    return value if isinstance(value, str) else ""
