"""The read-only tools of a session: `read`, `grep`, `find` and `ls`.

They see the workspace and nothing else (`confine`), their output is bounded and says when it was cut, and
none of them can hold the program: what walks or matches runs in a process that the kernel ends in time
(`search`).
"""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio
import anyio.to_thread

from kinds.programs.confine import Confined, Found
from kinds.programs.errors import ToolRefused
from kinds.programs.search import REFUSED, Request
from kinds.programs.text import as_name, lines, one_line, skip_lines
from kinds.programs.wires import Tool

_KIB = 1024
_READ_LINES: Final = 400
_READ_BYTES: Final = 32 * _KIB
_FILE_BYTES: Final = 64 * 1024 * _KIB
_LINE_BYTES: Final = 2 * _KIB
_ENTRIES: Final = 500
# Each is a process of some 12 MiB beside the session heap.
_SEARCHES: Final = 2
_CHECKS: Final = 1
# Each thread that reads gets memory of its own from the C library, which keeps some of it.
_READS: Final = 4
_SEARCH_SECONDS: Final = 10.0

_NARROWER: Final = "use a simpler pattern or a narrower path"

_PATH: Final = {"type": "string", "description": "relative to the workspace"}

TOOLS: Final = (
    Tool(
        "read",
        f"Read lines of a file, each with its number in front. At most {_READ_LINES} lines a call.",
        {
            "type": "object",
            "properties": {
                "path": _PATH,
                "start": {"type": "integer", "description": "first line, from 1"},
                "end": {"type": "integer", "description": "last line"},
            },
            "required": ["path"],
        },
    ),
    Tool(
        "grep",
        "Search file contents below a path with a Python regular expression. Links and .git are not entered.",
        {"type": "object", "properties": {"pattern": {"type": "string"}, "path": _PATH}, "required": ["pattern"]},
    ),
    Tool(
        "find",
        "Find files by a glob: `*.py` matches names, `src/**/*.py` matches paths below `path`.",
        {"type": "object", "properties": {"glob": {"type": "string"}, "path": _PATH}, "required": ["glob"]},
    ),
    Tool("ls", "List a directory.", {"type": "object", "properties": {"path": _PATH}}),
)


@dataclass(frozen=True)
class Toolkit:
    """The tools over one workspace. Sessions share it: what they do at once is bounded over all of them.

    A check of citations holds a whole file, 4 MiB of it and what Python makes of that.
    """

    workspace: Confined
    searches: anyio.CapacityLimiter
    checks: anyio.CapacityLimiter
    reads: anyio.CapacityLimiter
    search_seconds: float

    @classmethod
    def over(cls, workspace: Confined, search_seconds: float = _SEARCH_SECONDS) -> "Toolkit":
        """The tools over this workspace. A search that takes longer is ended, with what it found until then."""
        searches, checks, reads = (anyio.CapacityLimiter(most) for most in (_SEARCHES, _CHECKS, _READS))
        return cls(workspace, searches, checks, reads, search_seconds)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The output of a tool. Raises ToolRefused, whose message is for the model."""
        if name == "read":
            path, start, end = _text(arguments, "path"), _line(arguments, "start"), _line(arguments, "end")
            return await anyio.to_thread.run_sync(read, self.workspace, path, start, end, limiter=self.reads)
        if name == "ls":
            path = _text(arguments, "path", "")
            return await anyio.to_thread.run_sync(listing, self.workspace, path, limiter=self.reads)
        if name == "grep":
            return await self._search("grep", _text(arguments, "pattern"), _text(arguments, "path", ""))
        if name == "find":
            return await self._search("find", _text(arguments, "glob"), _text(arguments, "path", ""))
        raise ToolRefused(f"there is no tool {one_line(name, 60)}")

    async def _search(self, mode: str, pattern: str, path: str) -> str:
        request = Request(mode, self.workspace.absolute, path, pattern, self.search_seconds)
        async with self.searches:
            try:
                done = await anyio.run_process(
                    [sys.executable, "-I", "-m", "kinds.programs.search"],
                    input=request.as_json(),
                    stderr=subprocess.PIPE,
                    check=False,
                    env={"LANG": "C.UTF-8"},
                )
            except OSError as error:
                raise ToolRefused(f"the search cannot be started: {error.strerror}") from error
        output = done.stdout.decode("utf-8", "replace")
        if done.returncode == REFUSED:
            raise ToolRefused(output)
        if done.returncode < 0:
            return f"{output}(cut: the search took longer than {self.search_seconds:g} s; {_NARROWER})\n"
        if done.returncode:
            raise ToolRefused(f"the search failed: {one_line(done.stderr[-300:].decode('utf-8', 'replace'), 300)}")
        return output


def read(workspace: Confined, path: str, start: int | None, end: int | None) -> str:
    """Lines of a file, each after its number as `[L<n>]`. Raises ToolRefused."""
    first = start or 1
    last = first + _READ_LINES - 1 if end is None else min(end, first + _READ_LINES - 1)
    shown: list[str] = []
    size = 0
    with workspace.file(path) as file:
        if file.seek(0, 2) > _FILE_BYTES:
            raise ToolRefused(f"the file is over {_FILE_BYTES} bytes, which is more than can be read")
        file.seek(0)
        passed, taken = skip_lines(file, first - 1, _FILE_BYTES)
        for number, text, cut in lines(file, _LINE_BYTES, _FILE_BYTES - taken, number=first):
            line = f"[L{number}] {text}{' (line cut)' if cut else ''}"
            size += len(line) + 1
            if number > last or size > _READ_BYTES:
                if end is not None and number > end:
                    return "\n".join(shown)
                return "\n".join([*shown, f"(cut: read on with start={number})"])
            shown.append(line)
    if not shown:
        return f"(the file has {passed} lines)"
    return "\n".join(shown)


def listing(workspace: Confined, path: str) -> str:
    """The entries of a directory, one a line. Raises ToolRefused."""
    entries = workspace.entries(path)
    shown = [_entry(entry) for entry in entries[:_ENTRIES]]
    if len(entries) > _ENTRIES:
        shown.append(f"(cut: {len(entries) - _ENTRIES} more entries)")
    return "\n".join(shown) or "(empty)"


def _entry(entry: Found) -> str:
    name = as_name(entry.name)
    if entry.kind == "directory":
        return f"{name}/"
    return f"{name}  {entry.size}" if entry.kind == "file" else f"{name}  (not a regular file)"


def _text(arguments: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = arguments.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise ToolRefused(f"`{name}` must be a text")
    return value


def _line(arguments: Mapping[str, Any], name: str) -> int | None:
    value = arguments.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ToolRefused(f"`{name}` must be a whole number from 1")
    return value
