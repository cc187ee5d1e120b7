"""The rule `report`: reads a changed file, then measures each practice that the brief asks for.

It looks at the added lines of the change in the brief: `+++ b/path` names the file, `[L12] +text` is an added
line of it, behind `| ` where the brief quotes. So its observations point at lines that are really there, and
the same change gets the same ones.
"""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from driver.stub.model.compose import compose
from driver.stub.model.conversation import Conversation
from driver.stub.model.shell import Shell

_PRACTICE: Final = re.compile(r"^#+ Practice ([A-Za-z0-9._-]+)", re.MULTILINE)
_COMMAND: Final = re.compile(r"^ +(\S.*report-observation'?) <<'END'$", re.MULTILINE)
_FILE: Final = re.compile(r"^\+\+\+ b/([^\t\n]+)")
_ADDED: Final = re.compile(r"^\[L(\d+)\] \+(.*)$")
_QUOTE_CHARACTERS: Final = 200
_REPOSITORY: Final = "repos/reviewed"
# What only quotes code is not measured as code.
_PROSE: Final = (".md", ".rst", ".txt", ".adoc")


@dataclass(frozen=True)
class AddedLine:
    path: str
    number: int
    text: str


def added_lines(brief: str) -> list[AddedLine]:
    """The added lines of the change that a brief shows, without the empty ones."""
    lines, path = [], None
    for quoted in brief.split("\n"):
        line = quoted.removeprefix("| ")
        if line.startswith("diff --git "):
            path = None
        elif match := _FILE.match(line):
            path = match[1]
        elif path and (match := _ADDED.match(line)) and match[2].strip():
            lines.append(AddedLine(path, int(match[1]), match[2]))
    return lines


def report(conversation: Conversation) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """The text and the tool calls of this turn. Where feedback is asked for and no observation, see `compose`."""
    if "report_feedback" in conversation.tools:
        return compose(conversation)
    lines = added_lines(conversation.brief)
    if conversation.shell and "report_observation" not in conversation.tools:
        return _by_command(conversation, conversation.shell, lines)
    practices = list(dict.fromkeys(_PRACTICE.findall(conversation.brief)))
    if conversation.turn == 0 and lines and "read" in conversation.tools:
        return "I read the change first.", [("read", {"path": f"{_REPOSITORY}/{lines[0].path}"})]
    reported = conversation.turn > ("read" in conversation.tools and bool(lines))
    if reported or not practices or "report_observation" not in conversation.tools:
        return "Each practice has its observation.", []
    return "", [("report_observation", {"observations": [_observe(slug, lines) for slug in practices]})]


def _by_command(
    conversation: Conversation, shell: Shell, lines: list[AddedLine]
) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """The turn of a client whose model reports by the command that its brief tells: one call for each practice."""
    command = _COMMAND.search(conversation.brief)
    practices = list(dict.fromkeys(_PRACTICE.findall(conversation.brief)))
    if command is None or conversation.turn > bool(lines):
        return "Each practice has its observation.", []
    if conversation.turn == 0 and lines:
        return "I read the change first.", [shell.call(f"cat -- {shlex.quote(f'{_REPOSITORY}/{lines[0].path}')}")]
    reports = [json.dumps({"observations": [_observe(slug, lines)]}) for slug in practices]
    return "", [shell.call(f"{command[1]} <<'END'\n{text}\nEND") for text in reports]


def _observe(slug: str, lines: list[AddedLine]) -> dict[str, Any]:
    if not lines:
        return _observation(slug, "NOT_APPLICABLE", "The change adds no line.", None)
    find = _FINDINGS.get(slug)
    finding = find(lines) if find else None
    if finding is None:
        return _observation(slug, "MET", "Nothing in the added lines speaks against it.", lines[0])
    severity, summary, line = finding
    return _observation(slug, "NOT_MET", summary, line) | {"severity": severity}


def _observation(slug: str, outcome: str, summary: str, line: AddedLine | None) -> dict[str, Any]:
    citations = []
    if line is not None:
        place = {"path": f"{_REPOSITORY}/{line.path}", "startLine": line.number, "endLine": line.number}
        citations.append({**place, "quote": line.text.strip()[:_QUOTE_CHARACTERS]})
    return {"practiceSlug": slug, "outcome": outcome, "summary": summary, "citations": citations}


Finding = tuple[str, str, AddedLine]


def _matching(pattern: str, severity: str, summary: str) -> Callable[[list[AddedLine]], Finding | None]:
    compiled = re.compile(pattern)

    def find(lines: list[AddedLine]) -> Finding | None:
        code = (line for line in lines if not line.path.endswith(_PROSE))
        return next(((severity, summary, line) for line in code if compiled.search(line.text)), None)

    return find


def _untested(lines: list[AddedLine]) -> Finding | None:
    if any("test" in line.path.lower() for line in lines):
        return None
    return "MINOR", "The change adds behaviour and no test.", lines[0]


_FINDINGS: Final[dict[str, Callable[[list[AddedLine]], Finding | None]]] = {
    "errors-are-specific": _matching(
        r"^\s*except(\s+(Base)?Exception)?\s*:|\bcatch\s*(\(\s*\))?\s*\{\s*\}",
        "MAJOR",
        "An added handler catches every error.",
    ),
    "no-open-ends": _matching(r"(#|//|/\*|--).*\b(TODO|FIXME|XXX)\b", "MINOR", "An added line leaves work for later."),
    "no-debug-leftovers": _matching(
        r"^\s*(print|console\.log|breakpoint|dbg!)\(", "MINOR", "An added line prints for its author."
    ),
    "tests-come-along": _untested,
}
