"""What a conversation's program is given: the captured facts and what is asked, as one JSON file.

The driver staged it, and has checked it before; what is wrong here is a fault of who staged it.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from kinds.programs.confine import Confined
from kinds.programs.errors import ToolRefused

_FILE_BYTES: Final = 16 * 1024 * 1024


class CapturedError(Exception):
    """The staged file cannot be used; the message names the member."""


@dataclass(frozen=True)
class Fact:
    """One captured fact. `kind` is FEEDBACK or PROFILE_CHANGE, `at` a moment as RFC 3339."""

    id: str
    kind: str
    text: str
    at: str


@dataclass(frozen=True)
class Said:
    """One earlier message of the conversation."""

    role: str
    text: str


@dataclass(frozen=True)
class Captured:
    """What is answered from. Without a `question` it is a digest; `answer_characters` bounds the answer."""

    conversation: str
    facts: tuple[Fact, ...]
    since: str
    until: str
    answer_characters: int
    question: str | None
    history: tuple[Said, ...]

    def fact(self, id: str) -> Fact | None:
        """The fact of this id, or None when none was captured."""
        return next((fact for fact in self.facts if fact.id == id), None)


def load(workspace: Confined, path: str) -> Captured:
    """Read the staged file. Blocks. Raises CapturedError."""
    try:
        with workspace.file(path) as file:
            data = file.read(_FILE_BYTES + 1)
    except ToolRefused as error:
        raise CapturedError(str(error)) from error
    if len(data) > _FILE_BYTES:
        raise CapturedError(f"{path} is over {_FILE_BYTES:,} bytes")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CapturedError(f"{path} is not JSON") from error
    return _captured(document)


def _captured(document: Any) -> Captured:
    window = _member(document, "window", dict)
    limit = _member(document, "answerChars", int)
    question = document.get("question")
    if question is not None and not isinstance(question, str):
        raise CapturedError("question: must be a text")
    if isinstance(limit, bool) or limit < 1:
        raise CapturedError("answerChars: must be a number from 1")
    return Captured(
        conversation=_member(document, "conversation", str),
        facts=tuple(_fact(one) for one in _member(document, "facts", list)),
        since=_member(window, "from", str),
        until=_member(window, "to", str),
        answer_characters=limit,
        question=question,
        history=tuple(_said(one) for one in document.get("history") or ()),
    )


def _fact(value: Any) -> Fact:
    return Fact(*(_member(value, name, str) for name in ("id", "kind", "text", "at")))


def _said(value: Any) -> Said:
    return Said(_member(value, "role", str), _member(value, "text", str))


def _member(value: Any, name: str, kind: type) -> Any:
    if not isinstance(value, dict) or not isinstance(value.get(name), kind):
        raise CapturedError(f"{name}: is missing, or not of its type")
    return value[name]
