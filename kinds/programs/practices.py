"""The practices that a review is measured against, and how they are shared out to sessions."""

import json
import posixpath
import re
from dataclasses import dataclass
from typing import Any, Final

from kinds.programs.confine import Confined
from kinds.programs.errors import InputsUnusable, ToolRefused
from kinds.programs.text import clean

PER_SESSION: Final = 8

_MIB = 1024 * 1024
_INDEX_BYTES: Final = 4 * _MIB
_CRITERIA_BYTES: Final = 16 * 1024
_PRACTICES: Final = 2000
_SLUG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


@dataclass(frozen=True)
class Practice:
    """One practice of the index. `criteria` is Markdown, or None when its file cannot be read."""

    slug: str
    area: str
    title: str
    criteria: str | None


@dataclass(frozen=True)
class Plan:
    """One session: practices of one area, eight at most."""

    name: str
    practices: tuple[Practice, ...]

    @property
    def slugs(self) -> tuple[str, ...]:
        return tuple(practice.slug for practice in self.practices)


def load(workspace: Confined, index: str) -> list[Practice]:
    """The practices in the order of the index. Raises InputsUnusable when it is not a list of practices."""
    try:
        with workspace.file(index) as file:
            data = file.read(_INDEX_BYTES + 1)
        entries = json.loads(data) if len(data) <= _INDEX_BYTES else None
    except (ToolRefused, ValueError, RecursionError) as error:
        raise InputsUnusable(f"the practice index {index} cannot be read: {error}") from error
    if not isinstance(entries, list) or len(entries) > _PRACTICES:
        raise InputsUnusable(f"the practice index {index} is not a list of at most {_PRACTICES} practices")
    practices = [_practice(workspace, index, place, entry) for place, entry in enumerate(entries)]
    if len({practice.slug for practice in practices}) < len(practices):
        raise InputsUnusable(f"the practice index {index} names a practice twice")
    return practices


def plan(practices: list[Practice]) -> list[Plan]:
    """Sessions, in the order in which the areas appear."""
    areas: dict[str, list[Practice]] = {}
    for practice in practices:
        areas.setdefault(practice.area, []).append(practice)
    return [session for area, members in areas.items() for session in _sessions(area, members)]


def _sessions(area: str, members: list[Practice]) -> list[Plan]:
    groups = [tuple(members[start : start + PER_SESSION]) for start in range(0, len(members), PER_SESSION)]
    if len(groups) == 1:
        return [Plan(area, groups[0])]
    return [Plan(f"{area} {number}", group) for number, group in enumerate(groups, 1)]


def _practice(workspace: Confined, index: str, place: int, entry: Any) -> Practice:
    fields = entry if isinstance(entry, dict) else {}
    slug, area, title = (fields.get(name) for name in ("slug", "area", "title"))
    if not isinstance(slug, str) or not _SLUG.fullmatch(slug):
        raise InputsUnusable(f"practice {place} of {index} has no valid slug")
    if not isinstance(area, str) or not area.strip() or not isinstance(title, str) or not title.strip():
        raise InputsUnusable(f"practice {slug} of {index} needs an area and a title")
    return Practice(slug, clean(area).strip(), clean(title).strip(), _criteria(workspace, index, slug))


def _criteria(workspace: Confined, index: str, slug: str) -> str | None:
    try:
        with workspace.file(posixpath.join(posixpath.dirname(index), f"{slug}.md")) as file:
            data = file.read(_CRITERIA_BYTES + 1)
    except ToolRefused:
        return None
    text = data[:_CRITERIA_BYTES].decode("utf-8", "replace")
    return text if len(data) <= _CRITERIA_BYTES else text + f"\n(cut: only the first {_CRITERIA_BYTES} bytes are here)"
