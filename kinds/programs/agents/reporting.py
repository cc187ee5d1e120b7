"""The command `report-observation`: how a CLI reports, with JSON on its input.

Each item is recorded or refused at once, by the rules of the tool `report_observation`. What is printed is for the
agent: what became of each item and, where one was refused, why. Exit 0 when every item was recorded, else 1; 2 when
nothing could be read or written.
"""

import json
import os
import shlex
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from kinds.programs import citations, observations, repair
from kinds.programs.agents import journal
from kinds.programs.agents.journal import JournalUnusable
from kinds.programs.citations import Citation
from kinds.programs.confine import Confined
from kinds.programs.observations import Book, ObservationRefused
from kinds.programs.repair import NotUnderstood

COMMAND: Final = "report-observation"
INPUT_BYTES: Final = 1024 * 1024
_SESSION: Final = "session.json"


@dataclass(frozen=True)
class Asked:
    """What a session was asked, as its command knows it. `workspace` is absolute."""

    workspace: str
    repository: str
    practices: tuple[str, ...]


def install(directory: Path, asked: Asked) -> Path:
    """Write the command of a session below `directory`; its path. Raises OSError."""
    (directory / _SESSION).write_text(json.dumps(asdict(asked)), encoding="ascii")
    place = directory / "bin"
    place.mkdir()
    command = place / COMMAND
    words = [sys.executable, "-I", "-m", __spec__.name, str(directory)]
    command.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    command.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP)
    return command


def main(argv: Sequence[str] | None = None) -> int:
    """Report what stands on the input to the session in the directory that is named."""
    words = sys.argv[1:] if argv is None else argv
    if len(words) != 1:
        return _say(2, f"{COMMAND} takes no arguments: give the observations as JSON on its input")
    try:
        directory = Path(words[0])
        known = json.loads((directory / _SESSION).read_bytes())
        asked = Asked(known["workspace"], known["repository"], tuple(known["practices"]))
        data = sys.stdin.buffer.read(INPUT_BYTES + 1)
        if len(data) > INPUT_BYTES:
            return _say(2, f"refused: the input is over {INPUT_BYTES:,} bytes; report fewer observations at once")
        return _report(directory, asked, data.decode("utf-8", "replace"))
    except (JournalUnusable, OSError, ValueError, KeyError, TypeError) as error:
        return _say(2, f"nothing was recorded: {error}")


def _report(directory: Path, asked: Asked, text: str) -> int:
    workspace = Confined(Path(asked.workspace))

    def check(given: Any) -> Citation:
        return citations.check(workspace, asked.repository, given)

    book = Book(asked.practices)
    with journal.opened(directory / journal.NAME) as (lines, file):
        for line in lines:
            journal.replay(book, asked.practices, line, check)
        try:
            items = observations.items(_arguments(text))
        except ObservationRefused as error:
            journal.append(file, [journal.refused_line(None, str(error))])
            return _say(1, f"refused: {error}", _example(asked))
        told, entries, refused = [], [], False
        for number, item in enumerate(items, 1):
            verdict = book.report(asked.practices, item, check)
            name = f"item {number} ({verdict.practice or 'no practice of this session'})"
            if verdict.refusal is None:
                told.append(f"{name}: recorded")
                entries.append(journal.recorded_line(item))
            else:
                refused = True
                told.append(f"{name}: refused: {verdict.refusal}")
                entries.append(journal.refused_line(verdict.practice, verdict.refusal))
        journal.append(file, entries)
    return _say(int(refused), *told, f"still open: {', '.join(book.open()) or 'none'}")


def _arguments(text: str) -> str:
    """The input as the tool's arguments: a list or one observation alone is understood too."""
    try:
        value = repair.loads(text, lambda value: isinstance(value, dict | list))
    except NotUnderstood:
        return text
    if isinstance(value, Mapping) and "observations" in value:
        return text
    return json.dumps({"observations": value})


def _example(asked: Asked) -> str:
    example = {"practiceSlug": asked.practices[0], "outcome": "MET", "summary": "...", "citations": []}
    return f"give it as {json.dumps({'observations': [example]})}"


def _say(exit: int, *lines: str) -> int:
    text = "\n".join(lines) + "\n"
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()
    return exit


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
