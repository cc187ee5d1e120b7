"""CLIs that are none: scripts that speak as pi does, and reviews through the real driver with them."""

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driver.stub.server import running_stub
from tests.e2e.driving import Driver, driving, files_of, scenario, stop_signal

_SPEAKING = """\
import json, os, re, subprocess, sys, time

BRIEF = sys.stdin.read()
ASKED = re.findall(r"^## Practice (\\S+)$", BRIEF, re.MULTILINE)


def answered(tokens):
    usage = {"input": tokens, "output": 2, "cacheRead": 1, "cacheWrite": 0}
    message = {"role": "assistant", "stopReason": "stop", "usage": usage}
    print(json.dumps({"type": "message_end", "message": message}), flush=True)


def report(slug, **change):
    one = {"practiceSlug": slug, "outcome": "MET", "summary": "Seen.", "citations": [], **change}
    text = json.dumps({"observations": [one]})
    done = subprocess.run(["report-observation"], input=text, text=True, capture_output=True)
    return done.returncode


"""


@dataclass(frozen=True)
class Reviewed:
    """What became of a review: the run's end as it was logged, the output of the program, and its files."""

    ended: dict[str, Any]
    output: list[str]
    files: dict[str, Any]
    workspace: Path

    @property
    def states(self) -> dict[str, str]:
        """The state of each practice, or why it has none."""
        coverage = self.files["result.json"]["coverage"]
        return {one["practiceSlug"]: one.get("reason", one["state"]) for one in coverage}


def fake(place: Path, body: str) -> Path:
    """A CLI that does this, in Python."""
    place.mkdir(exist_ok=True)
    path = place / "fake-cli"
    path.write_text(f"#!{sys.executable}\n{_SPEAKING}{body}")
    path.chmod(0o755)
    return path


def command(name: str, *options: str) -> str:
    """The setting that reviews with a CLI."""
    return shlex.join([sys.executable, "-m", "kinds.programs.agents", name, *options])


async def review(tmp_path: Path, program: str, *, until: str = "", **tables: Any) -> Reviewed:
    """One review of the example repository; with `until`, the driver is stopped once that was printed."""
    workspace = tmp_path / "workspace"
    async with (
        running_stub(scenario(**tables)) as stub,
        driving(stub, workspace, DRIVER_PROGRAM_REVIEW=program) as driver,
    ):
        if until:
            while not any(until in line for line in _output(driver)):
                await driver.changed()
            stop_signal(driver)
        ended = await driver.wait_event("run.ended")
        if not until:
            stop_signal(driver)
        assert await driver.exit() == 0
    files = {name.removeprefix("out/"): json.loads(data) for name, data in files_of(stub).items()}
    return Reviewed(ended, _output(driver), files, workspace)


def _output(driver: Driver) -> list[str]:
    return [line["text"] for line in driver.named("program.output")]
