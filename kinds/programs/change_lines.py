"""Which lines the change view shows: where a comment can stand beside the change."""

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kinds.programs.confine import Confined
from kinds.programs.errors import InputsUnusable, ToolRefused

_FILES: Final = "work/change/files.json"
_FILES_BYTES: Final = 32 * 1024 * 1024
_TOLD_RANGES: Final = 12

Range = tuple[int, int]


@dataclass(frozen=True)
class ChangeLines:
    """The lines of each changed file, as the repository names it, that the patch shows.

    `prefix` is where the repository lies in the workspace: paths with it are understood too.
    """

    hunks: dict[str, tuple[Range, ...]]
    prefix: str

    def path(self, given: str) -> str | None:
        """A changed file as the repository names it, or None when it is none."""
        inside = given.removeprefix(f"{self.prefix}/")
        return next((path for path in (inside, given) if path in self.hunks), None)

    def holds(self, path: str, line: int) -> bool:
        """Whether the patch shows this line of a changed file."""
        hunks = self.hunks[path]
        place = bisect_right(hunks, line, key=lambda hunk: hunk[0]) - 1
        return place >= 0 and line <= hunks[place][1]

    def first_of(self, given: str, start: int, end: int) -> tuple[str, int] | None:
        """The first of these lines that the patch shows, or None when it shows none of them."""
        path = self.path(given)
        if path is None:
            return None
        shown = (max(start, first) for first, last in self.hunks[path] if start <= last and end >= first)
        line = next(shown, None)
        return None if line is None else (path, line)

    def told(self, path: str) -> str:
        """The lines of a changed file in a few words."""
        hunks = [f"{first}-{last}" for first, last in self.hunks[path]]
        more = f" and {len(hunks) - _TOLD_RANGES} more ranges" if len(hunks) > _TOLD_RANGES else ""
        return ", ".join(hunks[:_TOLD_RANGES]) + more if hunks else "none"


def load(workspace: Confined, repository: str) -> ChangeLines:
    """The lines of the change view. Blocks. Raises InputsUnusable."""
    try:
        with workspace.file(_FILES) as file:
            data = file.read(_FILES_BYTES + 1)
    except ToolRefused as error:
        raise InputsUnusable(f"there is no change view: {error}") from error
    if len(data) > _FILES_BYTES:
        raise InputsUnusable(f"{_FILES} is over {_FILES_BYTES:,} bytes")
    try:
        return ChangeLines({one["path"]: _hunks(one["hunks"]) for one in json.loads(data)}, repository)
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise InputsUnusable(f"{_FILES} cannot be understood ({type(error).__name__})") from error


def _hunks(given: Sequence[Any]) -> tuple[Range, ...]:
    return tuple(sorted((int(first), int(last)) for first, last in given))
