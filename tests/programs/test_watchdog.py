"""The program's own watchdog."""

import subprocess
import sys
from pathlib import Path

from driver.exits import ProgramExit
from kinds.programs.watchdog import Watchdog

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


def test_leaves_a_program_alone_that_ends() -> None:
    """When the block is left in time nothing happens, and no thread is left."""
    with Watchdog(60, ProgramExit.WATCHDOG, lambda: None) as dog:
        pass
    assert not dog._thread.is_alive()
