"""A workspace whose review was admitted, and the composing program as a real process over it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from tests.programs.fake_door import Ended, FakeDoor, Refuse, Say, Seen, make_workspace, surroundings

DIGEST = "sha-256=:observed:"
HELLO = "repos/reviewed/src/hello.py"
# Two hunks of one file, as lines of the new file.
FILES = [
    {"path": "src/hello.py", "status": "modified", "hunks": [[1, 3], [10, 12]]},
    {"path": "gone.py", "status": "deleted", "hunks": []},
]

Script = Callable[[Seen], Say | Refuse]


def admitted(id: str, outcome: str = "NOT_MET", *cited: tuple[str, int], **more: Any) -> dict[str, Any]:
    """An admitted observation that cites these lines; the first line of hello.py where none is named."""
    return {
        "id": id,
        "practiceSlug": f"practice-{id}",
        "outcome": outcome,
        **({"severity": "MAJOR"} if outcome == "NOT_MET" else {}),
        "summary": f"What was seen of {id}.",
        "citations": [
            {"path": path, "startLine": line, "endLine": line, "quote": "def hello(name):"}
            for path, line in cited or ((HELLO, 1),)
        ],
        **more,
    }


def request(*observations: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A composition request with room for three units in each channel."""
    return {
        "schemaVersion": 1,
        "observations": list(observations),
        "digest": DIGEST,
        "channels": {
            "inline": {"maxUnits": 3, "maxCharacters": 200},
            "summary": {"maxUnits": 3, "maxCharacters": 400},
        },
        "history": [],
        **more,
    }


def composed_workspace(root: Path, wanted: dict[str, Any]) -> Path:
    """A workspace with a change and this composition request."""
    make_workspace(root, {})
    (root / "work/change/files.json").write_text(json.dumps(FILES))
    (root / "inputs/composition.json").write_text(json.dumps(wanted))
    return root


def command(wire: str = "responses") -> list[str]:
    """The program's command line."""
    return [sys.executable, "-I", "-m", "kinds.programs.compose", "--task", "task.json", "--wire", wire]


async def compose(workspace: Path, door: FakeDoor, wire: str = "responses", **environment: str) -> Ended:
    """Run the real composing program as a real process."""
    done = await anyio.run_process(command(wire), cwd=workspace, check=False, env=surroundings(door) | environment)
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode(), workspace / "out")


def inline(*ids: str, line: Any = 1, path: Any = HELLO, body: Any = "Name it better.") -> dict[str, Any]:
    """A unit beside the change."""
    return {"observationIds": list(ids), "body": body, "placement": {"kind": "INLINE", "path": path, "line": line}}


def in_summary(*ids: str, body: Any = "All of it is like that.") -> dict[str, Any]:
    """A unit in the summary."""
    return {"observationIds": list(ids), "body": body, "placement": {"kind": "SUMMARY"}}


def feedback(*units: Any) -> tuple[str, Any]:
    """A call of report_feedback."""
    return ("report_feedback", {"units": list(units)})


def summary(text: Any = "One thing is left.") -> tuple[str, Any]:
    """A call of report_summary."""
    return ("report_summary", {"text": text})


def turns(*says: Say) -> Script:
    """A model that says these one after the other, and is silent then."""
    return lambda seen: says[seen.turn] if seen.turn < len(says) else Say("That is all.")
