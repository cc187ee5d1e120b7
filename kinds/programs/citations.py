"""Citations, checked against the file that they name.

A citation must lie in the workspace and in its file. A quote must be there: with wrong line numbers it is
recorded where the text is, when that is one place only. Without a quote the cited lines are recorded. A
refusal tells what the cited lines really hold, so that the model can correct itself.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

from kinds.programs.confine import Confined
from kinds.programs.errors import ToolRefused
from kinds.programs.text import clean, flat, one_line

_MIB = 1024 * 1024
_FILE_BYTES: Final = 4 * _MIB
_LINES: Final = 100
_QUOTE_CHARACTERS: Final = 4000
_TOLD_LINES: Final = 5
_TOLD_CHARACTERS: Final = 200
_TOLD_PLACES: Final = 5
# What the change view and the `read` tool put in front of a line; models copy it into quotes.
_MARK: Final = re.compile(r"^\s*\[L(?:\d+|-)\]( [ +-]| )?")


class CitationRefused(Exception):
    """The citation does not hold; the message tells why and what is really there."""


@dataclass(frozen=True)
class Citation:
    """A checked citation. `quote` is the text of the file."""

    path: str
    start_line: int
    end_line: int
    quote: str

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "startLine": self.start_line, "endLine": self.end_line, "quote": self.quote}


def check(workspace: Confined, repository: str, given: Any) -> Citation:
    """The citation as it is recorded. `repository` is where the reviewed checkout lies in the workspace.

    Blocks for the reading of one file, 4 MiB at most. Raises CitationRefused.
    """
    if not isinstance(given, dict):
        raise CitationRefused("a citation must be an object with path, startLine and endLine")
    start = _number(given, "startLine")
    end = _number(given, "endLine", start)
    quote = given.get("quote")
    if quote is not None and not isinstance(quote, str):
        raise CitationRefused("`quote` must be a text")
    if end < start:
        raise CitationRefused(f"endLine {end} is before startLine {start}")
    path, lines = _read(workspace, repository, given.get("path"))
    if quote is None or not quote.strip():
        return _without_quote(path, lines, start, end)
    return _with_quote(path, lines, (start, end), quote)


def _without_quote(path: str, lines: list[str], start: int, end: int) -> Citation:
    _check_range(path, lines, start, end)
    return _citation(path, lines, start, end, start, end)


def _with_quote(path: str, lines: list[str], cited: tuple[int, int], quote: str) -> Citation:
    start, end = cited
    places = _places(lines, _quoted(quote))
    inside = [place for place in places if start <= place[0] and place[1] <= end]
    if inside:
        _check_range(path, lines, start, end)
        return _citation(path, lines, start, end, *inside[0])
    if len(places) == 1:
        return _citation(path, lines, *places[0], *places[0])
    told = _told(path, lines, start, end)
    if not places:
        raise CitationRefused(f"the quote is not in {path}. {told}")
    at = ", ".join(str(place[0]) for place in places[:_TOLD_PLACES])
    more = " and more" if len(places) > _TOLD_PLACES else ""
    raise CitationRefused(f"the quote is in {path} more than once (at line {at}{more}) but not there. {told}")


def _citation(path: str, lines: list[str], start: int, end: int, quoted: int, last: int) -> Citation:
    quote = "\n".join(lines[quoted - 1 : last])
    return Citation(path, start, end, clean(quote)[:_QUOTE_CHARACTERS])


def _check_range(path: str, lines: list[str], start: int, end: int) -> None:
    if end > len(lines):
        raise CitationRefused(f"{path} has {len(lines)} lines, so line {end} is not in it")
    if end - start >= _LINES:
        raise CitationRefused(f"a citation is at most {_LINES} lines, not {end - start + 1}")


def _read(workspace: Confined, repository: str, path: Any) -> tuple[str, list[str]]:
    """The path as the workspace names it, and the file's lines.

    A path that the workspace does not have is looked for in the reviewed checkout: the change view names
    files as the repository does.
    """
    if not isinstance(path, str) or not path.strip():
        raise CitationRefused("`path` must be a text that is not empty")
    try:
        return _lines(workspace, workspace.relative(path))
    except ToolRefused as error:
        try:
            return _lines(workspace, workspace.relative(f"{repository}/{path}"))
        except ToolRefused:
            raise CitationRefused(str(error)) from error


def _lines(workspace: Confined, path: str) -> tuple[str, list[str]]:
    with workspace.file(path) as file:
        data = file.read(_FILE_BYTES + 1)
    if len(data) > _FILE_BYTES:
        raise ToolRefused(f"{path} is over {_FILE_BYTES} bytes and cannot be cited")
    lines = flat(data.decode("utf-8", "replace").replace("\r\n", "\n")).split("\n")
    if lines[-1] == "":
        lines.pop()
    return path, lines


def _quoted(quote: str) -> list[str]:
    """The quote's lines without marks of the views and surrounding blanks."""
    lines = [_MARK.sub("", line).strip() for line in flat(quote.replace("\r\n", "\n")).split("\n")]
    while lines and not lines[0]:
        lines.pop(0)
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _places(lines: list[str], quote: list[str]) -> list[tuple[int, int]]:
    """Where the quote is, as first and last line: whole lines, but it may begin and end within one."""
    if not quote:
        return []
    first, last, span = quote[0], quote[-1], len(quote)
    if span == 1:
        return [(n, n) for n, line in enumerate(lines, 1) if first in line]
    stripped = [line.strip() for line in lines]
    return [
        (n + 1, n + span)
        for n in range(len(lines) - span + 1)
        if stripped[n].endswith(first)
        and stripped[n + span - 1].startswith(last)
        and stripped[n + 1 : n + span - 1] == quote[1:-1]
    ]


def _told(path: str, lines: list[str], start: int, end: int) -> str:
    held = lines[start - 1 : min(end, start - 1 + _TOLD_LINES)]
    if not held:
        return f"{path} has {len(lines)} lines"
    shown = "\n".join(f"[L{n}] {one_line(line, _TOLD_CHARACTERS)}" for n, line in enumerate(held, start))
    return f"The cited lines hold:\n{shown}"


def _number(given: dict[str, Any], name: str, default: int | None = None) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CitationRefused(f"`{name}` must be a whole number from 1")
    return value
