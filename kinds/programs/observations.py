"""What was observed: each reported item is recorded or refused on its own, with the reason."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kinds.programs import repair
from kinds.programs.citations import Citation, CitationRefused
from kinds.programs.repair import NotUnderstood
from kinds.programs.text import clean, one_line
from kinds.programs.wires import Tool

OUTCOMES: Final = ("MET", "NOT_MET", "NOT_APPLICABLE", "UNDETERMINED")
SEVERITIES: Final = ("MINOR", "MAJOR", "CRITICAL")
REFUSALS: Final = 8
"""After so many refusals a practice is not reached."""

_SUMMARY_CHARACTERS: Final = 2000
_CITATIONS: Final = 20
_ITEMS: Final = 50
# All of them go into one file of the result and into one request, each of which is bounded.
_HELD_BYTES: Final = 6 * 1024 * 1024
_REASON_CHARACTERS: Final = 500

TOOL: Final = Tool(
    "report_observation",
    "Record observations, one for each practice. Each item is recorded or refused on its own.",
    {
        "type": "object",
        "properties": {
            "observations": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "practiceSlug": {"type": "string"},
                        "outcome": {"type": "string", "enum": list(OUTCOMES)},
                        "severity": {
                            "type": "string",
                            "enum": list(SEVERITIES),
                            "description": "with NOT_MET only, and always then",
                        },
                        "summary": {"type": "string", "description": f"at most {_SUMMARY_CHARACTERS} characters"},
                        "citations": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "properties": {
                                    "path": {"type": "string", "description": "relative to the workspace"},
                                    "startLine": {"type": "integer"},
                                    "endLine": {"type": "integer"},
                                    "quote": {"type": "string", "description": "exactly as in the file"},
                                },
                                "required": ["path", "startLine", "endLine"],
                            },
                        },
                    },
                    "required": ["practiceSlug", "outcome", "summary", "citations"],
                },
            }
        },
        "required": ["observations"],
    },
)

Check = Callable[[Any], Citation]
"""Checks one citation; raises CitationRefused."""


class ObservationRefused(Exception):
    """The observation is not recorded; the message tells why."""


@dataclass(frozen=True)
class Observation:
    """A recorded observation."""

    practice: str
    outcome: str
    severity: str | None
    summary: str
    citations: tuple[Citation, ...]

    def as_json(self) -> dict[str, Any]:
        severity = {} if self.severity is None else {"severity": self.severity}
        return {
            "practiceSlug": self.practice,
            "outcome": self.outcome,
            **severity,
            "summary": self.summary,
            "citations": [citation.as_json() for citation in self.citations],
        }


@dataclass(frozen=True)
class Verdict:
    """What became of one item. `refusal` is None when it was recorded."""

    practice: str | None
    observation: Observation | None
    refusal: str | None


@dataclass
class Book:
    """The state of every practice: recorded, not reached for a reason, or still open.

    `held` is what the recorded observations come to as JSON, in bytes. One thread at a time may report.
    """

    practices: tuple[str, ...]
    recorded: dict[str, Observation] = field(default_factory=dict)
    not_reached: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    held: int = 0

    def open(self, practices: tuple[str, ...] | None = None) -> list[str]:
        """The practices that have no result yet."""
        asked = self.practices if practices is None else practices
        return [slug for slug in asked if slug not in self.recorded and slug not in self.not_reached]

    def close(self, practices: tuple[str, ...], reason: str) -> None:
        """Those of the practices that are still open are not reached, for this reason."""
        for slug in self.open(practices):
            self.not_reached[slug] = one_line(reason, _REASON_CHARACTERS)

    def report(self, asked: tuple[str, ...], item: Any, check: Check) -> Verdict:
        """Record one item of a session that was asked for these practices, or refuse it."""
        slug = item.get("practiceSlug") if isinstance(item, Mapping) else None
        known = slug if isinstance(slug, str) and slug in asked else None
        try:
            observation = _observation(self, asked, item, check)
            self._keep(observation)
        except (ObservationRefused, CitationRefused) as error:
            return Verdict(known, None, self.refuse(known, str(error)))
        return Verdict(known, observation, None)

    def refuse(self, slug: str | None, reason: str) -> str:
        """Count a refusal against an open practice; what to answer, which tells when it was the last one."""
        if slug is None or slug in self.recorded or slug in self.not_reached:
            return reason
        self.refusals[slug] = self.refusals.get(slug, 0) + 1
        if self.refusals[slug] < REFUSALS:
            return reason
        told = f"{REFUSALS} observations were refused; the last: {reason}"
        self.not_reached[slug] = one_line(told, _REASON_CHARACTERS)
        return f"{reason}\nThat was refusal {REFUSALS} for {slug}: it counts as not reached now; report it no more."

    def observations(self) -> list[Observation]:
        """What was recorded, in the order of the practices, whatever the order of the sessions was."""
        return [self.recorded[slug] for slug in self.practices if slug in self.recorded]

    def coverage(self) -> list[dict[str, Any]]:
        """The state of each practice, as JSON."""
        return [self._state(slug) for slug in self.practices]

    def _keep(self, observation: Observation) -> None:
        size = len(json.dumps(observation.as_json()))
        if self.held + size > _HELD_BYTES:
            left = _HELD_BYTES - self.held
            raise ObservationRefused(f"it takes {size:,} bytes, and the result has room for {left:,}; cite less")
        self.held += size
        self.recorded[observation.practice] = observation

    def _state(self, slug: str) -> dict[str, Any]:
        if slug in self.recorded:
            return {"practiceSlug": slug, "state": "RECORDED"}
        reason = self.not_reached.get(slug, "the measurement ended before it had a result")
        return {"practiceSlug": slug, "state": "NOT_REACHED", "reason": reason}


def items(arguments: str) -> list[Any]:
    """The reported items in a tool call's arguments.

    A list, or one object alone; as JSON, or as a string that holds JSON; also with one stray or missing
    closing bracket where only one repair is possible. Raises ObservationRefused.
    """
    try:
        return repair.items(arguments, "observations", _ITEMS)
    except NotUnderstood as error:
        raise ObservationRefused(str(error)) from error


def _observation(book: Book, asked: tuple[str, ...], item: Any, check: Check) -> Observation:
    if not isinstance(item, Mapping):
        raise ObservationRefused("an observation must be an object")
    slug = _practice(book, asked, item.get("practiceSlug"))
    outcome = item.get("outcome")
    if outcome not in OUTCOMES:
        raise ObservationRefused(f"`outcome` must be one of {', '.join(OUTCOMES)}")
    severity = _severity(outcome, item.get("severity"))
    summary = _summary(item.get("summary"))
    citations = tuple(check(citation) for citation in _citations(item.get("citations")))
    return Observation(slug, outcome, severity, summary, citations)


def _practice(book: Book, asked: tuple[str, ...], slug: Any) -> str:
    if not isinstance(slug, str) or slug not in asked:
        raise ObservationRefused(f"`practiceSlug` must be one of {', '.join(book.open(asked)) or 'none: all are done'}")
    if slug in book.recorded:
        raise ObservationRefused(f"{slug} has its observation already")
    if slug in book.not_reached:
        raise ObservationRefused(f"{slug} counts as not reached; report it no more")
    return slug


def _severity(outcome: str, severity: Any) -> str | None:
    if outcome != "NOT_MET":
        if severity is not None:
            raise ObservationRefused(f"`severity` goes with NOT_MET only, not with {outcome}")
        return None
    if severity not in SEVERITIES:
        raise ObservationRefused(f"NOT_MET needs a `severity`: one of {', '.join(SEVERITIES)}")
    return str(severity)


def _summary(summary: Any) -> str:
    text = clean(summary).strip() if isinstance(summary, str) else ""
    if not text:
        raise ObservationRefused("`summary` must be a text that is not empty")
    if len(text) > _SUMMARY_CHARACTERS:
        raise ObservationRefused(f"`summary` has {len(text)} characters; at most {_SUMMARY_CHARACTERS} are kept")
    return text


def _citations(citations: Any) -> list[Any]:
    if citations is None:
        return []
    if not isinstance(citations, list):
        raise ObservationRefused("`citations` must be a list")
    if len(citations) > _CITATIONS:
        raise ObservationRefused(f"{len(citations)} citations are too many; give at most {_CITATIONS}")
    return citations
