"""The three model wires: where they are served, and what of their answers the door must understand.

It must know three things: the first content, the terminal event (an event stream that ends without one has
broken off), and the usage. Most frames are only glanced at; the few that carry usage are decoded.

The wires: OpenAI's Responses and Chat Completions interfaces and Anthropic's Messages interface, as their
API references describe the streaming events.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from driver.door.frames import event_data, event_name
from driver.door.jsonscan import members, name_pattern, object_at, string_at
from driver.gateway.wire import ModelWire

_TYPE: Final = name_pattern("type")
_USAGE: Final = name_pattern("usage")

# What stands behind a member's name.
_TEXT: Final = re.compile(rb'\s*+:\s*+"(?!")')
_CONTAINER: Final = re.compile(rb"\s*+:\s*+[{\[]")
_LONGEST_DONE: Final = 64


@dataclass(frozen=True)
class Usage:
    """Tokens of one call. `input` includes what was read from a cache."""

    input: int
    output: int


class Reading:
    """What is known of one answer so far. `glance` takes each frame; `decode` those that it asks for."""

    def __init__(self) -> None:
        self.content = False
        self.terminal = False
        self._usage: dict[str, Any] = {}

    @property
    def usage(self) -> Usage | None:
        """The tokens, or None where the answer has not told them."""
        return None if not self._usage else self._tokens(self._usage)

    def glance(self, frame: bytes) -> bool:
        """Note what can be seen without decoding; whether the frame has to be decoded."""
        raise NotImplementedError

    def decode(self, frame: bytes) -> None:
        """Read a frame that `glance` asked for. Raises JsonRefused."""
        raise NotImplementedError

    def whole(self, body: bytes | bytearray) -> None:
        """Read the usage of an answer that was not streamed. Raises JsonRefused."""
        self._read_usage(body, 1)

    def _read_usage(self, data: bytes | bytearray, depth: int) -> None:
        for start in members(data, _USAGE, depth):
            told = object_at(data, start) or {}
            self._usage.update({name: value for name, value in told.items() if value is not None})

    @staticmethod
    def _tokens(usage: Mapping[str, Any]) -> Usage:
        return Usage(_count(usage, "input_tokens"), _count(usage, "output_tokens"))


class _NamedEvents(Reading):
    """A wire whose events have a name, in the frame's `event` line and as the `type` of its data."""

    content_name: ClassVar[re.Pattern[bytes]]
    terminal_names: ClassVar[frozenset[bytes]]
    usage_depths: ClassVar[Mapping[bytes, int]]
    suspect: ClassVar[re.Pattern[bytes]]

    def glance(self, frame: bytes) -> bool:
        if name := event_name(frame):
            self._note(name)
            return name in self.usage_depths
        return self.suspect.search(frame) is not None

    def decode(self, frame: bytes) -> None:
        data = event_data(frame)
        name = event_name(frame) or _event_type(data)
        self._note(name)
        if name in self.usage_depths:
            self._read_usage(data, self.usage_depths[name])

    def _note(self, name: bytes) -> None:
        if not self.content and self.content_name.search(name):
            self.content = True
        if name in self.terminal_names:
            self.terminal = True


class ResponsesReading(_NamedEvents):
    """`/v1/responses`: usage is in the response that the terminal event carries."""

    content_name = re.compile(rb"\.delta$")
    terminal_names = frozenset({b"response.completed", b"response.failed", b"response.incomplete", b"error"})
    usage_depths: ClassVar = {b"response.completed": 2, b"response.failed": 2, b"response.incomplete": 2}
    suspect = re.compile(rb'"(?:response\.(?:completed|failed|incomplete|[a-z_.]+\.delta)|error)"')


class MessagesReading(_NamedEvents):
    """`/v1/messages`: input tokens are in `message_start`, the output tokens so far in `message_delta`."""

    content_name = re.compile(rb"^content_block_delta$")
    terminal_names = frozenset({b"message_stop", b"error"})
    usage_depths: ClassVar = {b"message_start": 2, b"message_delta": 1}
    suspect = re.compile(rb'"(?:message_start|message_delta|message_stop|content_block_delta|error)"')

    @staticmethod
    def _tokens(usage: Mapping[str, Any]) -> Usage:
        cached = _count(usage, "cache_creation_input_tokens") + _count(usage, "cache_read_input_tokens")
        return Usage(_count(usage, "input_tokens") + cached, _count(usage, "output_tokens"))


class ChatReading(Reading):
    """`/v1/chat/completions`: chunks without names; usage is in a chunk of its own, where it was asked for.

    Inside a JSON string quotes are escaped, so only members are found, never text that looks like them.
    """

    _content_names = (b'"content"', b'"reasoning_content"', b'"reasoning"', b'"refusal"')
    _call_names = (b'"tool_calls"', b'"function_call"')

    def glance(self, frame: bytes) -> bool:
        if not self.content:
            self.content = any(_holds(frame, name, _TEXT) for name in self._content_names) or any(
                _holds(frame, name, _CONTAINER) for name in self._call_names
            )
        if not self.terminal:
            is_last = len(frame) < _LONGEST_DONE and event_data(frame) == b"[DONE]"
            self.terminal = is_last or _holds(frame, b'"finish_reason"', _TEXT) or _holds(frame, b'"error"', _CONTAINER)
        return _holds(frame, b'"usage"', _CONTAINER)

    def decode(self, frame: bytes) -> None:
        self._read_usage(event_data(frame), 1)

    @staticmethod
    def _tokens(usage: Mapping[str, Any]) -> Usage:
        return Usage(_count(usage, "prompt_tokens"), _count(usage, "completion_tokens"))


@dataclass(frozen=True)
class Route:
    """One path of the door.

    `wire` decides how errors look, and is None for paths that are no wire's. `reading` makes the reader of
    answers, and is None where an answer spends no tokens.
    """

    path: str
    methods: frozenset[str]
    wire: ModelWire | None = None
    reading: Callable[[], Reading] | None = None
    names_model: bool = False
    takes_permit: bool = True


_POST: Final = frozenset({"POST"})

OBSERVATIONS: Final = "/review/observations"
"""Where a program posts its observations for admission."""

ROUTES: Final[Mapping[str, Route]] = {
    route.path: route
    for route in (
        Route("/v1/responses", _POST, "responses", ResponsesReading, names_model=True),
        Route("/v1/chat/completions", _POST, "chat", ChatReading, names_model=True),
        Route("/v1/messages", _POST, "messages", MessagesReading, names_model=True),
        Route("/v1/messages/count_tokens", _POST, "messages", names_model=True),
        Route("/v1/models", frozenset({"GET", "HEAD"})),
        Route(OBSERVATIONS, _POST, takes_permit=False),
    )
}


def _event_type(data: bytes) -> bytes:
    for start in members(data, _TYPE, 1):
        return (string_at(data, start) or "").encode("utf-8", "replace")
    return b""


def _holds(frame: bytes, name: bytes, value: re.Pattern[bytes]) -> bool:
    """Whether a member of that quoted name has such a value. A plain search first: most frames hold none."""
    at = frame.find(name)
    while at >= 0:
        if value.match(frame, at + len(name)):
            return True
        at = frame.find(name, at + len(name))
    return False


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if type(value) is int and value >= 0 else 0
