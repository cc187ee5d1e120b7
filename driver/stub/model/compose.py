"""The rule `compose`: says what each observation says, where the brief says that it shows.

It reads the brief's observations: `## Observation ID` with the outcome and the place, and the text behind `| `. Each
`NOT_MET` one becomes a unit, or where there is none the first of all; then comes a summary that counts them. The same
brief gets the same feedback.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from driver.stub.model.conversation import Conversation

_OBSERVATION: Final = re.compile(
    r"^## Observation (?P<id>\S+)\n\n"
    r"Practice `?(?P<practice>[^`\n]+)`?: (?P<outcome>[A-Z_]+)(?: \((?P<severity>[A-Z]+)\))?\n"
    r"Place: (?P<place>\{.*\})\n"
    r"(?P<text>(?:\| .*\n?)*)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Observed:
    """An observation as the brief tells it; `place` is the unit's placement."""

    id: str
    practice: str
    outcome: str
    severity: str
    place: dict[str, Any]
    text: str


def observed(brief: str) -> list[Observed]:
    """The observations of a brief."""
    return [
        Observed(
            found["id"],
            found["practice"],
            found["outcome"],
            found["severity"] or "",
            json.loads(found["place"]),
            "\n".join(line.removeprefix("| ") for line in found["text"].splitlines()),
        )
        for found in _OBSERVATION.finditer(brief)
    ]


def compose(conversation: Conversation) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """The text and the tool calls of this turn."""
    seen = observed(conversation.brief)
    units = [_unit(one) for one in [one for one in seen if one.outcome == "NOT_MET"] or seen[:1]]
    turns: list[tuple[str, dict[str, Any]]] = [("report_feedback", {"units": units})] if units else []
    turns.append(("report_summary", {"text": _summary(seen)}))
    if conversation.turn < len(turns) and turns[conversation.turn][0] in conversation.tools:
        return "", [turns[conversation.turn]]
    return "The feedback is complete.", []


def _unit(one: Observed) -> dict[str, Any]:
    severity = f", {one.severity.lower()}" if one.severity else ""
    body = f"{one.text} ({one.practice}{severity})"
    return {"observationIds": [one.id], "body": body, "placement": one.place}


def _summary(seen: list[Observed]) -> str:
    open_ones = [one.practice for one in seen if one.outcome == "NOT_MET"]
    if not open_ones:
        return f"{len(seen)} practices were looked at, and none speaks against the change."
    listed = ", ".join(open_ones)
    return f"{len(open_ones)} of {len(seen)} practices that were looked at are not met: {listed}."
