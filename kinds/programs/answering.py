"""The part of a conversation's program: facts are read, and one answer is taken or refused with the reason."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kinds.programs import progress
from kinds.programs.captured import Captured
from kinds.programs.errors import ToolRefused
from kinds.programs.repair import NotUnderstood, loads
from kinds.programs.session_log import SessionLog
from kinds.programs.text import clean, one_line, quoted
from kinds.programs.wires import Tool, ToolCall

TRIES: Final = 8
"""After so many refused answers there is none."""

FACT_CHARACTERS: Final = 16_000
"""How much of a fact one call shows."""

_SHOWN_IDS: Final = 10
_ID_CHARACTERS: Final = 200

FACT: Final = Tool(
    "fact",
    f"Read a captured fact by its id, at most {FACT_CHARACTERS:,} characters a call.",
    {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "as in the brief"},
            "start": {"type": "integer", "description": "first character, from 1"},
        },
        "required": ["id"],
    },
)


def answer_tool(limit: int) -> Tool:
    """The tool `answer` of a conversation whose answer may have `limit` characters."""
    return Tool(
        "answer",
        "Give the one answer. It is taken or refused as a whole.",
        {
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": f"at most {limit} characters"},
                "factIds": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "the ids of the captured facts that the text rests on",
                },
            },
            "required": ["text", "factIds"],
        },
    )


@dataclass(frozen=True)
class Answer:
    """A taken answer."""

    text: str
    fact_ids: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {"text": self.text, "factIds": list(self.fact_ids)}


class AnswerRefused(Exception):
    """The answer is not taken; the message tells the model why."""


@dataclass(frozen=True)
class Shelf:
    """The tool `fact` (dialogue.Tools)."""

    captured: Captured

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """A part of a fact, quoted. Raises ToolRefused."""
        if name != FACT.name:
            raise ToolRefused(f"there is no tool {one_line(name, 60)}")
        id, start = arguments.get("id"), arguments.get("start", 1)
        fact = self.captured.fact(id) if isinstance(id, str) else None
        if fact is None:
            raise ToolRefused(f"no fact {_named([id])} was captured; the ids are in the brief")
        if type(start) is not int or start < 1:
            raise ToolRefused("`start` must be a whole number from 1")
        text = clean(fact.text)
        end = start - 1 + FACT_CHARACTERS
        shown = quoted(text[start - 1 : end])
        rest = f"\n(cut: it has {len(text)} characters; read on with start={end + 1})" if len(text) > end else ""
        return f"{_named([fact.id])} {fact.kind} {fact.at}\n{shown}{rest}"


class Answering:
    """Takes the answer (dialogue.Part). `answer` is the one that was taken, or None."""

    def __init__(self, captured: Captured, log: SessionLog) -> None:
        self.answer: Answer | None = None
        self._limit = captured.answer_characters
        self._ids = frozenset(fact.id for fact in captured.facts)
        self._log = log
        self._refused = 0

    @property
    def given_up(self) -> bool:
        """Whether every try was spent."""
        return self.answer is None and self._refused >= TRIES

    def left(self) -> list[str]:
        """The answer, as long as there is none and it may still be given."""
        return [] if self.answer is not None or self.given_up else ["the answer"]

    def reminder(self, left: list[str]) -> str:
        """See dialogue.Part."""
        return f"There is no answer yet: what you write counts only as `answer`, in at most {self._limit} characters."

    async def take(self, call: ToolCall) -> str | None:
        """Take the answer or refuse it (dialogue.Part)."""
        if call.name != "answer":
            return None
        try:
            answer = self._checked(call.arguments)
        except (AnswerRefused, NotUnderstood) as error:
            return self._refuse(str(error))
        self.answer = answer
        progress.say(f"answer taken: {len(answer.text)} characters, facts: {', '.join(answer.fact_ids) or 'none'}")
        return "The answer is taken."

    def _refuse(self, reason: str) -> str:
        self._refused += 1
        self._log.refused(f"answer: {reason}")
        progress.say(f"answer refused: {reason}")
        left = max(TRIES - self._refused, 0)
        return f"refused: {reason}. Tries left: {left}." if self.answer is None else f"refused: {reason}"

    def _checked(self, arguments: str) -> Answer:
        if self.answer is not None:
            raise AnswerRefused("there is an answer already")
        given = loads(arguments or "{}", lambda value: isinstance(value, dict))
        if self.given_up:
            raise AnswerRefused(f"{TRIES} answers were refused, and no more is taken")
        return Answer(self._text(given.get("text")), self._facts(given.get("factIds")))

    def _text(self, given: Any) -> str:
        text = clean(given).strip() if isinstance(given, str) else ""
        if not text:
            raise AnswerRefused("`text` must be a text that is not empty")
        over = len(text) - self._limit
        if over > 0:
            raise AnswerRefused(
                f"`text` has {len(text)} characters, {over} more than the {self._limit} that are allowed"
            )
        return text

    def _facts(self, given: Any) -> tuple[str, ...]:
        if isinstance(given, str):
            try:
                given = loads(given, lambda value: isinstance(value, list))
            except NotUnderstood as error:
                raise AnswerRefused("`factIds` must be a list of ids") from error
        if not isinstance(given, list):
            raise AnswerRefused("`factIds` must be a list of ids")
        unknown = [id for id in given if not isinstance(id, str) or id not in self._ids]
        if unknown:
            raise AnswerRefused(f"`factIds` names what was not captured: {_named(unknown)}")
        return tuple(dict.fromkeys(given))


def _named(ids: list[Any]) -> str:
    """Ids as a model may have invented them, in one bounded line."""
    shown = ", ".join(one_line(json.dumps(id, default=str), _ID_CHARACTERS) for id in ids[:_SHOWN_IDS])
    return f"{shown} and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else shown
