"""What a composition is made from: the request that the runner put at the envelope's `compositionRequest`.

The runner has checked it (kinds/compose.py), so what is wrong here is a fault of the workspace and no more is told
about it than its name.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kinds.programs.envelope import read_below
from kinds.programs.errors import InputsUnusable

SCHEMA_VERSION: Final = 1

_REQUEST_BYTES: Final = 32 * 1024 * 1024


@dataclass(frozen=True)
class Place:
    """Cited lines; `quote` may be empty."""

    path: str
    start: int
    end: int
    quote: str


@dataclass(frozen=True)
class Admitted:
    """An admitted observation."""

    id: str
    practice: str
    outcome: str
    severity: str | None
    summary: str
    places: tuple[Place, ...]

    @property
    def needs_feedback(self) -> bool:
        """Whether a composition is not done without a unit about it."""
        return self.outcome == "NOT_MET"


@dataclass(frozen=True)
class Bounds:
    """What one channel takes: units, and characters of one text."""

    units: int
    characters: int


@dataclass(frozen=True)
class Request:
    """A composition request."""

    digest: str
    observations: tuple[Admitted, ...]
    inline: Bounds
    summary: Bounds
    history: tuple[Any, ...]


def load(workspace: Path, location: str) -> Request:
    """The request at a checked location. Follows no link below the workspace. Blocks. Raises InputsUnusable."""
    try:
        data = read_below(workspace, location, _REQUEST_BYTES + 1)
    except OSError as error:
        raise InputsUnusable(f"{location} cannot be read: {error.strerror}") from error
    if len(data) > _REQUEST_BYTES:
        raise InputsUnusable(f"{location} is over {_REQUEST_BYTES:,} bytes")
    try:
        return _request(json.loads(data))
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise InputsUnusable(f"{location} is no composition request ({type(error).__name__}: {error})") from error


def _request(fields: dict[str, Any]) -> Request:
    if fields["schemaVersion"] != SCHEMA_VERSION:
        raise ValueError(f"schemaVersion {fields['schemaVersion']} is not {SCHEMA_VERSION}")
    channels = fields["channels"]
    return Request(
        digest=str(fields["digest"]),
        observations=tuple(map(_observation, fields["observations"])),
        inline=_bounds(channels["inline"]),
        summary=_bounds(channels["summary"]),
        history=tuple(fields["history"]),
    )


def _observation(fields: dict[str, Any]) -> Admitted:
    return Admitted(
        id=str(fields["id"]),
        practice=str(fields["practiceSlug"]),
        outcome=str(fields["outcome"]),
        severity=fields.get("severity"),
        summary=str(fields["summary"]),
        places=tuple(
            Place(str(one["path"]), int(one["startLine"]), int(one["endLine"]), str(one.get("quote", "")))
            for one in fields["citations"]
        ),
    )


def _bounds(fields: dict[str, Any]) -> Bounds:
    return Bounds(int(fields["maxUnits"]), int(fields["maxCharacters"]))
