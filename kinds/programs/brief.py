"""The first message of a session: what it is about, what was captured, and the practices it is asked for.

Each part is bounded and says what was cut. Whatever the workspace says stands behind `| ` on every line, the task and
the criteria too, so that nothing in it can look like a part of the brief.
"""

import json
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kinds.programs.confine import Confined
from kinds.programs.envelope import TaskEnvelope
from kinds.programs.errors import InputsUnusable, ToolRefused
from kinds.programs.practices import Plan, Practice
from kinds.programs.text import quoted
from kinds.programs.window import BYTES_A_TOKEN

_KIB = 1024
_DIFF: Final = "work/change/diff.patch"
_STAT: Final = "work/change/diff_stat.txt"
_HINTS: Final = "work/precompute"
_DIFF_BYTES: Final = 160 * _KIB
_STAT_BYTES: Final = 8 * _KIB
_RECORD_BYTES: Final = 12 * _KIB
_RECORDS_BYTES: Final = 48 * _KIB
_HINT_BYTES: Final = 8 * _KIB
_HINTS_BYTES: Final = 24 * _KIB
_BESIDE_BYTES: Final = _RECORDS_BYTES + _HINTS_BYTES
_CONTEXT_SHARE: Final = 0.5
_FIRST: Final = "metadata.json"
_NAMED_FILES: Final = 200
_DEPTH: Final = 8
_PLAIN_NAME: Final = re.compile(r"[\w .,@+=~()\[\]/-]+")


@dataclass(frozen=True)
class Shared:
    """What every session's brief begins with."""

    text: str


def system_prompt() -> str:
    """The measuring program's system prompt."""
    return (Path(__file__).parent / "prompts" / "measure.md").read_text(encoding="utf-8")


def part_for(context_tokens: int | None) -> float:
    """How much of its bounds a brief may use, so that what all sessions are told takes half the context at most."""
    if context_tokens is None:
        return 1.0
    return min(1.0, context_tokens * BYTES_A_TOKEN * _CONTEXT_SHARE / (_DIFF_BYTES + _STAT_BYTES + _BESIDE_BYTES))


def gather(workspace: Confined, envelope: TaskEnvelope, part: float = 1.0) -> Shared:
    """Read what all sessions are told, `part` of what its bounds allow.

    Blocks. Raises InputsUnusable when there is no change view.
    """
    task = (
        f"# Task\n\n{quoted(envelope.prompt.strip())}\n\n"
        f"Repository {named(envelope.repository_full_name)}, pull request {envelope.pull_request_number}. "
        f"The reviewed checkout is {named(envelope.repository_root)} in the workspace."
    )
    parts = [
        task,
        *_records(workspace, envelope.context_root, int(_RECORDS_BYTES * part)),
        *change(workspace, int(_DIFF_BYTES * part)),
        *_hints(workspace, int(_HINTS_BYTES * part)),
    ]
    return Shared("\n\n".join(parts))


def compose(shared: Shared, plan: Plan) -> str:
    """The first message of one session."""
    asked = ", ".join(plan.slugs)
    practices = [_practice(practice) for practice in plan.practices]
    return "\n\n".join([shared.text, f"# Practices\n\nReport one observation for each of: {asked}", *practices])


def reminder(left: list[str]) -> str:
    """What a model is told that stopped before it was done."""
    return (
        f"These practices have no observation yet: {', '.join(left)}. Report each of them with report_observation; "
        "use UNDETERMINED where the workspace does not tell."
    )


def _practice(practice: Practice) -> str:
    text = f"Title: {' '.join(practice.title.split())}\n\n{(practice.criteria or '').strip()}"
    return f"## Practice {practice.slug}\n\n{quoted(text.rstrip())}"


def _records(workspace: Confined, root: str, together: int) -> list[str]:
    return _section(workspace, root, "Captured records", _RECORD_BYTES, together, frozenset())


def _hints(workspace: Confined, together: int) -> list[str]:
    title = "Hints of the precompute scripts (leads to follow, not findings)"
    return _section(workspace, _HINTS, title, _HINT_BYTES, together, frozenset({f"{_HINTS}/index.json"}))


def _section(
    workspace: Confined, root: str, title: str, each: int, together: int, without: frozenset[str]
) -> list[str]:
    """The files below `root` as one section, or nothing where there are none."""
    paths = [path for path in _files(workspace, root, _DEPTH) if path not in without]
    paths.sort(key=lambda path: posixpath.basename(path) != _FIRST)
    if not paths:
        return []
    parts = [f"# {title}"]
    left = together
    for path in paths[:_NAMED_FILES]:
        if left <= 0:
            parts.append(f"{named(path)} (not shown here; read it)")
            continue
        text, size = _head(workspace, path, min(each, left))
        left -= len(text)
        parts.append(f"{named(path)}\n{_quoted(text)}{_cut(path, text, size)}")
    if len(paths) > _NAMED_FILES:
        parts.append(f"({len(paths) - _NAMED_FILES} more files below {named(root)})")
    return ["\n\n".join(parts)]


def change(workspace: Confined, most: int = _DIFF_BYTES) -> list[str]:
    """The change as a section, `most` bytes of it. Blocks. Raises InputsUnusable when there is no change view."""
    try:
        diff, size = _open_head(workspace, _DIFF, most)
    except ToolRefused as error:
        raise InputsUnusable(f"there is no change view: {error}") from error
    stat, stat_size = _head(workspace, _STAT, _STAT_BYTES)
    overview = f"`{_STAT}`\n{_quoted(stat)}{_cut(_STAT, stat, stat_size)}"
    return [f"# Change\n\n{overview}\n\n`{_DIFF}`\n{_quoted(diff)}{_cut(_DIFF, diff, size)}"]


def _files(workspace: Confined, root: str, depth: int) -> list[str]:
    try:
        entries = workspace.entries(root)
    except ToolRefused:
        return []
    paths = []
    for entry in entries:
        path = posixpath.join(root, entry.name)
        if entry.kind == "file":
            paths.append(path)
        elif entry.kind == "directory" and depth:
            paths += _files(workspace, path, depth - 1)
    return paths


def _head(workspace: Confined, path: str, limit: int) -> tuple[bytes, int]:
    try:
        return _open_head(workspace, path, limit)
    except ToolRefused:
        return b"", 0


def _open_head(workspace: Confined, path: str, limit: int) -> tuple[bytes, int]:
    """The first `limit` bytes of a file, cut at a line's end where there is one, and the file's size."""
    with workspace.file(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        data = file.read(limit)
    if len(data) < size and b"\n" in data:
        data = data[: data.rindex(b"\n") + 1]
    return data, size


def _quoted(data: bytes) -> str:
    return quoted(data.decode("utf-8", "replace"))


def named(path: str) -> str:
    """A path as a part of the brief. An odd one is written so that a tool call finds it and nothing reads as text."""
    return f"`{path}`" if _PLAIN_NAME.fullmatch(path) else json.dumps(path)


def _cut(path: str, shown: bytes, size: int) -> str:
    if len(shown) >= size:
        return ""
    return f"\n(cut: {len(shown)} of {size} bytes are shown; read {named(path)} for the rest)"
