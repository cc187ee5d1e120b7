"""The first message of a conversation's program: what is asked, and the captured facts by id.

What was captured or said stands behind `| ` on every line, so that nothing in it can look like a part of
the brief. Each part is bounded and says what was cut.
"""

import json
import re
from pathlib import Path
from typing import Final

from kinds.programs.captured import Captured, Fact, Said
from kinds.programs.text import clean, one_line, quoted

_LINE_CHARACTERS: Final = 200
_HISTORY_CHARACTERS: Final = 48_000
_QUESTION_CHARACTERS: Final = 32_000
_PLAIN_ID: Final = re.compile(r"[\w.:@+=~/-]+")


def system_prompt() -> str:
    """The program's system prompt."""
    return (Path(__file__).parent / "prompts" / "converse.md").read_text(encoding="utf-8")


def compose(captured: Captured) -> str:
    """The first message."""
    parts = [_task(captured), _facts(captured.facts)]
    if captured.history:
        parts.append(_history(captured.history))
    if captured.question is not None:
        parts.append(f"# Question\n\n{_bounded(captured.question, _QUESTION_CHARACTERS)}")
    return "\n\n".join(parts)


def _task(captured: Captured) -> str:
    since, until = one_line(captured.since, 60), one_line(captured.until, 60)
    asked = "Write the digest of the facts" if captured.question is None else "Answer the question from the facts"
    limit = captured.answer_characters
    return (
        f"# Task\n\n{asked} that were captured from {since} to {until}. "
        f"The answer has at most {limit} characters and cites the facts that it rests on by their ids."
    )


def _facts(facts: tuple[Fact, ...]) -> str:
    if not facts:
        return "# Captured facts\n\nNone were captured, so none can be cited."
    head = f"# Captured facts\n\n{len(facts)}, each with its first line; `fact` shows the rest."
    return "\n\n".join([head, *(_fact(fact) for fact in facts)])


def _fact(fact: Fact) -> str:
    text = clean(fact.text).strip()
    first = text.split("\n", 1)[0]
    more = "" if first == text and len(first) <= _LINE_CHARACTERS else f", {len(text)} characters"
    return f"{_id(fact.id)} {fact.kind} {one_line(fact.at, 60)}{more}\n| {one_line(first, _LINE_CHARACTERS)}"


def _history(history: tuple[Said, ...]) -> str:
    """The newest messages that fit; older ones are left out."""
    shown: list[str] = []
    room = _HISTORY_CHARACTERS
    for said in reversed(history):
        message = f"{one_line(said.role, 40)}\n{_bounded(said.text, _HISTORY_CHARACTERS // 4)}"
        room -= len(message)
        if room < 0:
            break
        shown.append(message)
    left_out = len(history) - len(shown)
    note = [f"({left_out} older messages are left out)"] if left_out else []
    return "\n\n".join(["# Conversation so far", *note, *reversed(shown)])


def _bounded(text: str, limit: int) -> str:
    text = clean(text).strip()
    cut = f"\n(cut: {limit} of {len(text)} characters are shown)" if len(text) > limit else ""
    return quoted(text[:limit]) + cut


def _id(id: str) -> str:
    """An id as a part of the brief; an odd one is written so that nothing in it reads as text."""
    return f"`{id}`" if _PLAIN_ID.fullmatch(id) else json.dumps(id)
