"""`grep` and `find`, in a process of their own: `python -m kinds.programs.search` with a request on stdin.

A pattern of the model can keep Python's `re` busy for years, and while it matches no thread of the same
process runs, so no time-out can stop it. Here the kernel does: SIGALRM, left at its default, ends the
process in mid-match, and what was found until then is already on stdout.
"""

import json
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kinds.programs.confine import Confined
from kinds.programs.errors import ToolRefused
from kinds.programs.text import as_name, lines

REFUSED: Final = 3
"""The exit of a search that was refused; stdout tells why."""

_KIB = 1024
_MIB = 1024 * _KIB
_OUTPUT_BYTES: Final = 32 * _KIB
_RESULTS: Final = 200
_FILES: Final = 200_000
_FILE_BYTES: Final = 4 * _MIB
_LINE_BYTES: Final = 2 * _KIB
_SHOWN_CHARACTERS: Final = 300
_BINARY_BYTES: Final = 8 * _KIB
_PATTERN_CHARACTERS: Final = 1000
_DEPTH: Final = 100


@dataclass(frozen=True)
class Request:
    """One search. `mode` is `grep` or `find`; `seconds` is what it may take."""

    mode: str
    root: str
    path: str
    pattern: str
    seconds: float

    def as_json(self) -> bytes:
        return json.dumps(self.__dict__).encode()


class _Output:
    """Prints results at once, and says when it stops."""

    def __init__(self) -> None:
        self._bytes = 0
        self.results = 0

    def result(self, line: str) -> bool:
        """Print one result. False when there is room for no more."""
        data = line.encode("utf-8", "replace") + b"\n"
        if self.results >= _RESULTS or self._bytes + len(data) > _OUTPUT_BYTES:
            self.note(f"cut: only the first {self.results} results are shown; search more narrowly")
            return False
        self.results += 1
        self._bytes += len(data)
        _print(data)
        return True

    def note(self, text: str) -> None:
        _print(f"({text})\n".encode())


def main() -> int:
    """Run the search that stdin asks for."""
    request = Request(**json.load(sys.stdin))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, request.seconds)
    try:
        _search(request, _Output())
    except ToolRefused as error:
        _print(str(error).encode("utf-8", "replace"))
        return REFUSED
    return 0


def _search(request: Request, output: _Output) -> None:
    if not 0 < len(request.pattern) <= _PATTERN_CHARACTERS:
        raise ToolRefused(f"a pattern has 1 to {_PATTERN_CHARACTERS} characters")
    workspace = Confined(Path(request.root))
    start = workspace.relative(request.path)
    if request.mode == "find":
        _find(workspace, start, request.pattern, output)
    else:
        _grep(workspace, start, request.pattern, output)
    if not output.results:
        output.note("nothing was found")


def _find(workspace: Confined, start: str, glob: str, output: _Output) -> None:
    expression = re.compile(_translate(glob))
    for path in _files(workspace, start, output):
        below = path.removeprefix(f"{start}/") if start else path
        name = below if "/" in glob else below.rpartition("/")[2]
        if expression.fullmatch(name) and not output.result(as_name(path)):
            return


def _grep(workspace: Confined, start: str, pattern: str, output: _Output) -> None:
    try:
        expression = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolRefused(f"the pattern is no Python regular expression: {error}") from error
    skipped = 0
    for path in _files(workspace, start, output):
        try:
            with workspace.file(path) as file:
                if file.seek(0, 2) > _FILE_BYTES:
                    skipped += 1
                    continue
                file.seek(0)
                if b"\0" in file.read(_BINARY_BYTES):
                    continue
                file.seek(0)
                for number, text, _ in lines(file, _LINE_BYTES, _FILE_BYTES):
                    if expression.search(text) and not output.result(_hit(path, number, text)):
                        return
        except (ToolRefused, OSError):
            skipped += 1
    if skipped:
        output.note(f"{skipped} files were not searched: over {_FILE_BYTES} bytes, or not readable")


def _hit(path: str, number: int, text: str) -> str:
    return f"{as_name(path)}:{number}: {text[:_SHOWN_CHARACTERS]}"


def _files(workspace: Confined, start: str, output: _Output) -> Iterator[str]:
    """Every regular file below `start`, in order; `.git` is entered only when asked for by name."""
    for seen, path in enumerate(_walk(workspace, start, start.count("/")), 1):
        if seen > _FILES:
            output.note(f"cut: only {_FILES} files were looked at; search below a narrower path")
            return
        yield path


def _walk(workspace: Confined, path: str, depth: int) -> Iterator[str]:
    try:
        entries = workspace.entries(path)
    except ToolRefused:
        if _is_file(workspace, path):
            yield path
            return
        raise
    for entry in entries:
        below = f"{path}/{entry.name}" if path else entry.name
        if entry.kind == "file":
            yield below
        elif entry.kind == "directory" and entry.name != ".git" and depth < _DEPTH:
            try:
                yield from _walk(workspace, below, depth + 1)
            except ToolRefused:
                continue  # it went away, or became a link, since it was listed


def _is_file(workspace: Confined, path: str) -> bool:
    try:
        with workspace.file(path):
            return True
    except ToolRefused:
        return False


def _translate(glob: str) -> str:
    """A regular expression for a glob: `**/` is any directories, `*` and `?` stay within one part."""
    parts: list[str] = []
    rest = glob
    while rest:
        for sign, expression in (("**/", "(?:[^/]+/)*"), ("**", ".*"), ("*", "[^/]*"), ("?", "[^/]")):
            if rest.startswith(sign):
                parts.append(expression)
                rest = rest[len(sign) :]
                break
        else:
            parts.append(re.escape(rest[0]))
            rest = rest[1:]
    return "".join(parts)


def _print(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
