"""The program's own watchdog."""

import json
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from driver.exits import ProgramExit
from kinds.programs.watchdog import Watchdog
from tests.programs.fake_door import Say, Seen, command, fake_door, make_workspace, met, report, surroundings

STUCK = """
import sys, time
from pathlib import Path
from kinds.programs.heap import SessionHeap
from kinds.programs.results import Report
from kinds.programs.watchdog import Watchdog

report = Report(Path("out"), SessionHeap(2, 1).statistics)
with Watchdog(0.05, 3, lambda: report.write(3)):
    while True:
        pass
"""


def test_ends_a_program_that_is_stuck(tmp_path: Path) -> None:
    """A program whose loop is stuck ends with 3, and its files are there."""
    done = subprocess.run([sys.executable, "-I", "-c", STUCK], cwd=tmp_path, check=False, timeout=20)
    assert done.returncode == ProgramExit.WATCHDOG
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["result.json", "runner-debug.json", "usage.json"]


@pytest.mark.slow
@pytest.mark.anyio
async def test_ends_the_measuring_program_when_it_hangs(tmp_path: Path) -> None:
    """A program whose output nobody reads hangs in it: its watchdog ends it with 3, with what it had recorded."""
    workspace = make_workspace(tmp_path, {"naming": "style", "errors": "style"})

    def chatter(seen: Seen) -> Say:
        looks = [("ls", {"path": f"{number} " * 50}) for number in range(60)]
        return Say(calls=(report(met("naming")), *looks))

    async with fake_door(chatter) as door:
        async with await anyio.open_process(
            command(), cwd=workspace, env=surroundings(door) | {"DRIVER_WORK_SECONDS": "6"}, stderr=None
        ) as process:
            exit = await process.wait()
    assert exit == ProgramExit.WATCHDOG
    result = json.loads((workspace / "out/result.json").read_text())
    assert [one["practiceSlug"] for one in result["observations"]] == ["naming"]
    assert [one["state"] for one in result["coverage"]] == ["RECORDED", "NOT_REACHED"]
    assert json.loads((workspace / "out/runner-debug.json").read_text())["exit"] == ProgramExit.WATCHDOG


def test_leaves_a_program_alone_that_ends() -> None:
    """When the block is left in time nothing happens, and no thread is left."""
    with Watchdog(60, ProgramExit.WATCHDOG, lambda: None) as dog:
        pass
    assert not dog._thread.is_alive()
