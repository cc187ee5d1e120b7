"""What the gateway tells a `DIGEST` and a `TURN`, and what an answer may be (docs/protocol.md, "Calls")."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AwareDatetime, ConfigDict, Field, ValidationError, field_validator, model_validator

from driver.gateway.wire import Message

FACTS: Final = 1000
"""How many facts one conversation's context may hold."""

ANSWER_CHARACTERS: Final = 1_000_000
"""The most that `answerChars` may allow."""

_ID_CHARACTERS: Final = 200
_QUESTION_CHARACTERS: Final = 32_000
_MESSAGES: Final = 1000
_SHOWN_IDS: Final = 10

FactId = Annotated[str, Field(min_length=1, max_length=_ID_CHARACTERS)]


class Fact(Message):
    """One captured fact."""

    id: FactId
    kind: Literal["FEEDBACK", "PROFILE_CHANGE"]
    text: str
    at: AwareDatetime

    @field_validator("id")
    @classmethod
    def _printable(cls, id: str) -> str:
        if not id.isprintable() or id != id.strip():
            raise ValueError("must be printable, and must not begin or end with a blank")
        return id


class Window(Message):
    """From when to when the facts were captured."""

    since: AwareDatetime = Field(alias="from")
    until: AwareDatetime = Field(alias="to")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.since > self.until:
            raise ValueError("`from` must not be after `to`")
        return self


class Said(Message):
    """One earlier message of the conversation; `role` tells who said it."""

    role: str = Field(min_length=1, max_length=40)
    text: str


class DigestContext(Message):
    """What the context of a DIGEST has besides the common part. `answer_chars` counts Unicode code points."""

    conversation: str = Field(min_length=1, max_length=_ID_CHARACTERS)
    facts: list[Fact] = Field(max_length=FACTS)
    window: Window
    answer_chars: int = Field(ge=1, le=ANSWER_CHARACTERS)
    question: str | None = None

    @field_validator("facts")
    @classmethod
    def _each_once(cls, facts: list[Fact]) -> list[Fact]:
        seen: set[str] = set()
        for fact in facts:
            if fact.id in seen:
                raise ValueError(f"the id {fact.id} stands there twice")
            seen.add(fact.id)
        return facts

    @field_validator("question")
    @classmethod
    def _asked(cls, question: str | None) -> str | None:
        if question is not None:
            raise ValueError("a digest has none")
        return question


class TurnContext(DigestContext):
    """What the context of a TURN has besides the common part."""

    question: str
    history: list[Said] = Field(default_factory=list, max_length=_MESSAGES)

    @field_validator("question")
    @classmethod
    def _asked(cls, question: str | None) -> str | None:
        if question is None or not question.strip():
            raise ValueError("must not be empty")
        if len(question) > _QUESTION_CHARACTERS:
            raise ValueError(f"has {len(question):,} characters; at most {_QUESTION_CHARACTERS:,} are taken")
        return question


class Answer(Message):
    """What a program leaves as `out/answer.json`, and what goes with the end."""

    model_config = ConfigDict(extra="forbid", validate_by_name=False, validate_by_alias=True)

    text: str
    fact_ids: list[str]

    def require_allowed(self, context: DigestContext) -> None:
        """ValueError, naming the member, when the context does not allow this answer."""
        if not self.text.strip():
            raise ValueError("text: must not be empty")
        over = len(self.text) - context.answer_chars
        if over > 0:
            raise ValueError(f"text: has {len(self.text):,} characters, {over:,} more than {context.answer_chars:,}")
        captured = {fact.id for fact in context.facts}
        unknown = [id for id in self.fact_ids if id not in captured]
        if unknown:
            named = ", ".join(ascii(id)[:_ID_CHARACTERS] for id in unknown[:_SHOWN_IDS])
            raise ValueError(f"factIds: {len(unknown)} were not captured: {named}")
        if len(set(self.fact_ids)) < len(self.fact_ids):
            raise ValueError("factIds: the same id stands there twice")


def stated(model: type[DigestContext], members: Mapping[str, Any]) -> DigestContext:
    """The kind's part of a context. Raises ValidationError."""
    # From JSON, where a moment is a text: in a strict model a text is none.
    return model.model_validate_json(json.dumps(members))


def problem_with(error: ValidationError) -> str:
    """The first fault in one line, with the member that it is in."""
    fault = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, fault["loc"]))
    said = fault["msg"].removeprefix("Value error, ")
    return f"{where}: {said}" if where else said
