"""What the stub knows of conversations: the context of a `DIGEST` and a `TURN`, and what may end one.

An answer is judged again here whatever the driver checked: a tool in the sandbox may hold the token.
"""

from collections.abc import Mapping
from typing import Any, Final

from driver.stub.errors import Rejected

CONVERSATION_KINDS: Final = ("DIGEST", "TURN")
"""The kinds whose subject is a conversation, of which one at a time is leased."""

# The calls in flight of one attempt.
_CALLS_IN_FLIGHT: Final = 170
_CONVERSATION_CALLS_IN_FLIGHT: Final = 2

_FACTS: Final = [
    {
        "id": "feedback-31",
        "kind": "FEEDBACK",
        "text": "Two of your three changes this week caught every error with a bare `except`.\n\n"
        "The reviewers asked for the specific error each time; the third change named it from the start.",
        "at": "2026-01-05T09:30:00Z",
    },
    {
        "id": "feedback-34",
        "kind": "FEEDBACK",
        "text": "Each change of this week came with a test for what it adds.",
        "at": "2026-01-07T15:10:00Z",
    },
    {
        "id": "profile-8",
        "kind": "PROFILE_CHANGE",
        "text": "The practice `tests-come-along` went from emerging to steady.",
        "at": "2026-01-08T08:00:00Z",
    },
]
_QUESTION: Final = {
    "question": "What should I look at next in my error handling?",
    "history": [
        {"role": "DEVELOPER", "text": "How did my last week go?"},
        {
            "role": "ASSISTANT",
            "text": "Your tests came along with each change; error handling was what reviewers raised.",
        },
    ],
}


def context_of(kind: str, subject: str) -> dict[str, Any]:
    """What a run of this kind is told of its conversation where the scenario says nothing; empty for other kinds."""
    if kind not in CONVERSATION_KINDS:
        return {}
    told = {
        "conversation": subject.removeprefix("conversation:"),
        "facts": _FACTS,
        "window": {"from": "2026-01-05T00:00:00Z", "to": "2026-01-12T00:00:00Z"},
        "answerChars": 1200,
    }
    return told if kind == "DIGEST" else {**told, **_QUESTION}


def calls_in_flight(kind: str) -> int:
    """How many model calls one attempt of this kind may have in flight, where the scenario says nothing."""
    return _CONVERSATION_CALLS_IN_FLIGHT if kind in CONVERSATION_KINDS else _CALLS_IN_FLIGHT


def require_answer(answer: Mapping[str, Any] | None, context: Mapping[str, Any]) -> None:
    """Rejected (422), naming the member, when this answer may not end a conversation of that context."""
    if (wrong := _problem(answer or {}, context)) is not None:
        raise Rejected(422, "answer_invalid", wrong)


def _problem(answer: Mapping[str, Any], context: Mapping[str, Any]) -> str | None:
    text, cited, most = answer.get("text"), answer.get("factIds"), context.get("answerChars")
    if not isinstance(text, str) or not text.strip():
        return "answer: text: must be a text that is not empty"
    if isinstance(most, int) and len(text) > most:
        return f"answer: text: {len(text)} characters; at most {most} are taken"
    captured = [fact.get("id") for fact in context.get("facts") or () if isinstance(fact, dict)]
    if not isinstance(cited, list) or not all(isinstance(id, str) and id in captured for id in cited):
        return "answer: factIds: must be a list of captured facts"
    if extra := answer.keys() - {"text", "factIds"}:
        return f"answer: {min(extra)}: is not known"
    return None
