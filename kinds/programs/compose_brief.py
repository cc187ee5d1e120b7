"""The first message of a composition: the observations with their places, earlier feedback, and the change.

Each part is bounded and says what was cut. What others wrote stands behind `| ` on every line, so that nothing in it
can look like a part of the brief.
"""

import json
from pathlib import Path
from typing import Final

from kinds.programs import brief
from kinds.programs.change_lines import ChangeLines
from kinds.programs.confine import Confined
from kinds.programs.envelope import TaskEnvelope
from kinds.programs.feedback import INLINE, SUMMARY
from kinds.programs.request import Admitted, Bounds, Place, Request
from kinds.programs.text import one_line, quoted

_KIB = 1024
_OBSERVATIONS_CHARACTERS: Final = 256 * _KIB
_HISTORY_CHARACTERS: Final = 16 * _KIB
_SUMMARY_CHARACTERS: Final = 2000
_QUOTE_CHARACTERS: Final = 800
_PLACES: Final = 5


def system_prompt() -> str:
    """The composing program's system prompt."""
    return (Path(__file__).parent / "prompts" / "compose.md").read_text(encoding="utf-8")


def compose(workspace: Confined, envelope: TaskEnvelope, request: Request, lines: ChangeLines) -> str:
    """The first message. Blocks. Raises InputsUnusable when there is no change view."""
    task = (
        f"# Task\n\nWrite the feedback on pull request {envelope.pull_request_number} of "
        f"{brief.named(envelope.repository_full_name)}. The reviewed checkout is "
        f"{brief.named(envelope.repository_root)} in the workspace.\n\n"
        f"{_bounds(INLINE, request.inline)}\n{_bounds(SUMMARY, request.summary)}\n"
        f"The summary has at most {request.summary.characters:,} characters."
    )
    parts = [task, *_observations(request, lines, envelope.composition_request), *_history(request)]
    return "\n\n".join([*parts, *brief.change(workspace)])


def reminder(left: list[str]) -> str:
    """What a model is told that stopped before it was done."""
    return (
        f"Not done yet: {', '.join(left)}. Report the units with report_feedback and the summary with report_summary; "
        "stop again when you want to leave it so."
    )


def _bounds(channel: str, bounds: Bounds) -> str:
    return f"{channel}: at most {bounds.units} units, each of at most {bounds.characters:,} characters."


def _observations(request: Request, lines: ChangeLines, location: str) -> list[str]:
    parts = ["# Observations"]
    left = _OBSERVATIONS_CHARACTERS
    for observation in request.observations:
        head, told = _head(observation, lines), _told(observation)
        left -= len(told)
        parts.append(f"{head}\n{told if left >= 0 else f'(not shown here; read {brief.named(location)})'}")
    return parts


def _head(observation: Admitted, lines: ChangeLines) -> str:
    severity = f" ({observation.severity})" if observation.severity else ""
    practice = one_line(observation.practice, 200)
    found = (lines.first_of(place.path, place.start, place.end) for place in observation.places)
    shown = next((place for place in found if place is not None), None)
    where = {"kind": SUMMARY} if shown is None else {"kind": INLINE, "path": shown[0], "line": shown[1]}
    return (
        f"## Observation {observation.id}\n\nPractice {brief.named(practice)}: {observation.outcome}{severity}\n"
        f"Place: {json.dumps(where)}"
    )


def _told(observation: Admitted) -> str:
    parts = [quoted(_bounded(observation.summary, _SUMMARY_CHARACTERS)), *map(_cited, observation.places[:_PLACES])]
    if len(observation.places) > _PLACES:
        parts.append(f"({len(observation.places) - _PLACES} more citations)")
    return "\n".join(parts)


def _cited(place: Place) -> str:
    head = f"Cited: {brief.named(place.path)}, lines {place.start} to {place.end}"
    return f"{head}\n{quoted(_bounded(place.quote, _QUOTE_CHARACTERS))}" if place.quote else head


def _history(request: Request) -> list[str]:
    if not request.history:
        return []
    text = json.dumps(list(request.history), ensure_ascii=False, indent=1)
    return [f"# Earlier feedback on this change\n\n{quoted(_bounded(text, _HISTORY_CHARACTERS))}"]


def _bounded(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n(cut: {limit:,} of {len(text):,} characters are shown)"
