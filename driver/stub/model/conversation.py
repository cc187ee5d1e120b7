"""A model call and its answer, whatever the wire."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any, Final

from driver.stub.errors import Rejected
from driver.stub.model.shell import Shell, functions
from driver.stub.scenario import Usage

PIECE_CHARACTERS: Final = 48
"""How much text or arguments one streamed frame carries."""


@dataclass(frozen=True)
class Conversation:
    """What a request says.

    `brief` is the instructions and what the user says before the first answer; `turn` counts the answers before.
    `shell` is the tool that runs commands, where one is offered.
    """

    model: str
    stream: bool
    brief: str
    turn: int
    tools: frozenset[str]
    stream_usage: bool = False
    shell: Shell | None = None

    @property
    def session(self) -> str:
        """The same for each call of one session: a session is told by how it began."""
        return hashlib.sha256(self.brief.encode("utf-8", "replace")).hexdigest()[:12]


@dataclass(frozen=True)
class Call:
    """A tool call; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """An answer of the model. `created` is in seconds since the epoch."""

    id: str
    model: str
    created: int
    text: str
    calls: tuple[Call, ...]
    usage: Usage


def count_turns(roles: Iterable[str]) -> int:
    """How many answers a conversation holds: a run of items of the assistant is one."""
    return sum(role == "assistant" for role, _ in groupby(roles))


def opening(messages: Sequence[dict[str, Any]], role: Callable[[dict[str, Any]], str]) -> list[str]:
    """What the user says before the first answer."""
    before = takewhile(lambda message: role(message) != "assistant", messages)
    return [text_of(message.get("content")) for message in before if role(message) == "user"]


def role_of(message: dict[str, Any]) -> str:
    """The role of a message that names it."""
    return str(message.get("role"))


def text_of(content: object) -> str:
    """The text of a message: a string, or the `text` of each part."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))


def pieces(text: str) -> list[str]:
    """`text` in the pieces that a stream sends."""
    return [text[start : start + PIECE_CHARACTERS] for start in range(0, len(text), PIECE_CHARACTERS)]


def items(body: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The list of objects at `name`. Rejected (400) when it is something else."""
    value = body.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise Rejected(400, "invalid_request", f"`{name}` must be a list of objects that is not empty")
    return value


def model_of(body: dict[str, Any]) -> str:
    """The model that a request names. Rejected (400) without one."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise Rejected(400, "invalid_request", "`model` must name a model")
    return model


def tool_names(body: dict[str, Any]) -> frozenset[str]:
    """The names of the tools that a request offers."""
    return frozenset(str(function["name"]) for function in functions(body) if "name" in function)
