"""The feedback while it is composed: each reported unit is taken or refused on its own, with the reason.

Nothing admitted is lost silently: what no unit covers is told in the result, and what was refused too. Nothing is
invented: a unit stands on admitted observations, each used once, and beside the change only on a line of it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kinds.programs.change_lines import ChangeLines
from kinds.programs.request import Admitted, Bounds, Request
from kinds.programs.text import clean, one_line

INLINE: Final = "INLINE"
SUMMARY: Final = "SUMMARY"

_IDS: Final = 100
# All units go into one file of the result, which may have 10 MiB.
_HELD_BYTES: Final = 6 * 1024 * 1024
_NOTED: Final = 50
_NOTED_CHARACTERS: Final = 300
_TOLD_IDS: Final = 20


class UnitRefused(Exception):
    """The unit is not taken; the message tells why."""


@dataclass(frozen=True)
class Unit:
    """One piece of feedback. A `path` and a `line` of the change, or both None in the summary."""

    observations: tuple[str, ...]
    body: str
    path: str | None = None
    line: int | None = None

    @property
    def channel(self) -> str:
        return SUMMARY if self.path is None else INLINE

    def as_json(self) -> dict[str, Any]:
        place = {} if self.path is None else {"path": self.path, "line": self.line}
        placement = {"kind": self.channel, **place}
        return {"observationIds": list(self.observations), "body": self.body, "placement": placement}


@dataclass
class Sheet:
    """The feedback on one request. `held` is what the units come to as JSON, in bytes."""

    request: Request
    lines: ChangeLines
    units: list[Unit] = field(default_factory=list)
    summary: str | None = None
    refused: list[dict[str, Any]] = field(default_factory=list)
    refusals: int = 0
    held: int = 0
    _covered: dict[str, int] = field(default_factory=dict)

    def uncovered(self, *, needed: bool = False) -> list[Admitted]:
        """The admitted observations that no unit is about; with `needed` only those that call for one."""
        open_ones = (one for one in self.request.observations if one.id not in self._covered)
        return [one for one in open_ones if one.needs_feedback or not needed]

    def report(self, item: Any) -> Unit:
        """Take one unit. Raises UnitRefused, and notes it."""
        try:
            unit = self._unit(item)
            self._keep(unit)
        except UnitRefused as error:
            self._note(item, str(error))
            raise
        return unit

    def summarize(self, text: Any) -> None:
        """Take the summary, in place of an earlier one. Raises UnitRefused."""
        self.summary = _text(text, "text", self.request.summary)

    def as_json(self, version: int) -> dict[str, Any]:
        """`out/feedback.json`."""
        return {
            "schemaVersion": version,
            "digest": self.request.digest,
            "units": [unit.as_json() for unit in self.units],
            "summary": self.summary,
            "uncovered": [
                {"id": one.id, "practiceSlug": one.practice, "outcome": one.outcome} for one in self.uncovered()
            ],
            "refused": list(self.refused),
            "refusals": self.refusals,
        }

    def _unit(self, item: Any) -> Unit:
        if not isinstance(item, Mapping):
            raise UnitRefused("a unit must be an object with observationIds, body and placement")
        observations = self._observations(item.get("observationIds"))
        path, line = self._place(item.get("placement"))
        bounds = self.request.summary if path is None else self.request.inline
        channel = SUMMARY if path is None else INLINE
        if sum(unit.channel == channel for unit in self.units) >= bounds.units:
            raise UnitRefused(f"{channel} takes at most {bounds.units} units, and has them; {self._instead(channel)}")
        return Unit(observations, _text(item.get("body"), "body", bounds), path, line)

    def _observations(self, ids: Any) -> tuple[str, ...]:
        if not isinstance(ids, list) or not ids or not all(isinstance(one, str) for one in ids):
            raise UnitRefused("`observationIds` must be a list of ids that is not empty")
        if len(ids) > _IDS:
            raise UnitRefused(f"`observationIds` holds {len(ids)} ids; a unit is about at most {_IDS}")
        admitted = {one.id for one in self.request.observations}
        for one in ids:
            if one not in admitted:
                shown = one_line(one, _NOTED_CHARACTERS)
                raise UnitRefused(f"{shown!a} is no admitted observation; without a unit are {self._left()}")
            if one in self._covered:
                raise UnitRefused(f"{one} is in unit {self._covered[one]} already; without a unit are {self._left()}")
        return tuple(dict.fromkeys(ids))

    def _place(self, placement: Any) -> tuple[str | None, int | None]:
        kind = placement.get("kind") if isinstance(placement, Mapping) else None
        if kind == SUMMARY:
            return None, None
        if kind != INLINE:
            raise UnitRefused(f'`placement` must be {{"kind": "{INLINE}", "path", "line"}} or {{"kind": "{SUMMARY}"}}')
        given, line = placement.get("path"), placement.get("line")
        if not isinstance(given, str) or type(line) is not int:
            raise UnitRefused(f"{INLINE} needs a `path` and a `line`, which is a whole number")
        path = self.lines.path(given)
        if path is None:
            raise UnitRefused(f"{one_line(given, _NOTED_CHARACTERS)!a} is not in the change; use {SUMMARY}")
        if not self.lines.holds(path, line):
            told = self.lines.told(path)
            raise UnitRefused(f"line {line} of {path} is not in the change (its lines are {told}); or use {SUMMARY}")
        return path, line

    def _keep(self, unit: Unit) -> None:
        size = len(json.dumps(unit.as_json()))
        if self.held + size > _HELD_BYTES:
            left = _HELD_BYTES - self.held
            raise UnitRefused(f"it takes {size:,} bytes, and the feedback has room for {left:,}; say less")
        self.held += size
        self.units.append(unit)
        self._covered |= dict.fromkeys(unit.observations, len(self.units))

    def _instead(self, channel: str) -> str:
        other, bounds = (SUMMARY, self.request.summary) if channel == INLINE else (INLINE, self.request.inline)
        room = bounds.units - sum(unit.channel == other for unit in self.units)
        return f"{other} has room for {room}" if room > 0 else "nor has the other channel room; say it in the summary"

    def _left(self) -> str:
        ids = [one.id for one in self.uncovered()]
        more = f" and {len(ids) - _TOLD_IDS} more" if len(ids) > _TOLD_IDS else ""
        return ", ".join(ids[:_TOLD_IDS]) + more if ids else "none: all are done"

    def _note(self, item: Any, reason: str) -> None:
        """What was refused stands in the result; of what has no bound, the first ones and their beginnings."""
        self.refusals += 1
        if len(self.refused) < _NOTED:
            shown = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
            noted = {"unit": one_line(shown, _NOTED_CHARACTERS), "reason": one_line(reason, _NOTED_CHARACTERS)}
            self.refused.append(noted)


def _text(given: Any, name: str, bounds: Bounds) -> str:
    text = clean(given).strip() if isinstance(given, str) else ""
    if not text:
        raise UnitRefused(f"`{name}` must be a text that is not empty")
    if len(text) > bounds.characters:
        raise UnitRefused(f"`{name}` has {len(text):,} characters; at most {bounds.characters:,} are taken")
    return text
