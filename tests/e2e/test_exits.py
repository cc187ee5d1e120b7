"""Every exit code of a run, reached by a real driver on the stub, with what the gateway is told of it."""

import json
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from driver.stub.example import RANGE, make_example
from driver.stub.practices import load_practices
from driver.stub.repository import open_range
from driver.stub.server import running_stub
from driver.stub.workspaces import build_tree
from tests.e2e.driving import UNFINISHED, driving, files_of, scenario, shell, stop_signal

pytestmark = pytest.mark.anyio


def review_tree(tmp_path: Path) -> Path:
    """The workspace of a review of the example repository, as a directory that a test may change."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    make_example(tmp_path / "example", scratch)
    build_tree(open_range(tmp_path / "example", RANGE, scratch), load_practices(), tmp_path / "tree", scratch)
    return tmp_path / "tree"


def bundled(fault: str) -> str:
    """A command that runs the bundled program with a fault put into it, which is Python."""
    sizes = ["--session-heap", str(256 * 1024 * 1024), "--session-size", str(3 * 1024 * 1024)]
    arguments = ["--task", "task.json", "--wire", "responses", *sizes]
    script = f"import sys, kinds.programs.measure as measure\n{fault}\nsys.exit(measure.main({arguments}))"
    return shlex.join([sys.executable, "-I", "-c", script])


def rewrite(name: str, **fields: Any) -> Callable[[Path], None]:
    """Changes fields of a JSON file of the workspace."""

    def change(tree: Path) -> None:
        path = tree / name
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def spoil_index(tree: Path) -> None:
    (tree / "inputs/practices/index.json").write_text("nonsense")


@dataclass(frozen=True)
class Case:
    """How an exit is reached. `uploaded` is the exit that came with the result, None where there was none."""

    exit: int
    reason: str | None
    program: str | None = None
    change: Callable[[Path], None] | None = None
    run: dict[str, Any] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    uploaded: int | None = -1
    measured: bool = True


SILENT = [{"at": "model", "nth": "every", "what": "stall"}]
WATCHDOG = "import kinds.programs.starting as s; s.WATCHDOG_MARGIN = -598.0"
UNFORESEEN = "import kinds.programs.practices as p; p.plan = lambda practices: practices / 0"
CASES = {
    "0": Case(0, None),
    "1: unusable inputs": Case(1, "no complete output", change=spoil_index),
    "1: a program that leaves nothing": Case(
        1, "the program ended with 0 and left no out/result.json", shell("true"), measured=False
    ),
    "1: a program that is not there": Case(1, "cannot be started", "/no/such/program", measured=False),
    "1: an archive that is refused": Case(
        1,
        "is refused in names|inputs only",
        change=lambda tree: (tree / "out").mkdir(),
        uploaded=None,
        measured=False,
    ),
    "2: no change view": Case(
        2,
        "the base commit 1{40} cannot be read",
        change=rewrite("context/metadata.json", baseCommit="1" * 40),
        measured=False,
    ),
    "2: an error that nobody foresaw": Case(2, "unhandled error in the program", bundled(UNFORESEEN)),
    "3": Case(3, "ended by the program's own watchdog", bundled(WATCHDOG), faults=SILENT),
    "42: another version": Case(
        42, "schemaVersion: 2 is not 3", change=rewrite("task.json", schemaVersion=2), measured=False
    ),
    "42: a location outside": Case(
        42, "practiceIndex: must hold no", change=rewrite("task.json", practiceIndex="../x"), measured=False
    ),
    "43: no acknowledgement": Case(
        43,
        "the result was not acknowledged: result: 503",
        run={"upload_seconds": 1},
        faults=[{"at": "result", "nth": "every", "what": "status", "status": 503}],
        uploaded=None,
    ),
    "43: a link in out": Case(
        43, "entry 'out/x': only files and directories", shell("ln -s /etc out/x; exit 0"), uploaded=None
    ),
    "75": Case(
        75,
        "measured, but the observations never reached the gateway",
        run={"work_seconds": 10},
        faults=[{"at": "observations", "nth": "every", "what": "reset"}],
    ),
    "76": Case(
        76,
        "every model call went unanswered",
        faults=[{"at": "model", "nth": "every", "what": "status", "status": 500, "retry_after": 0}],
    ),
    "124: a program that goes on": Case(
        124, "stopped at the work deadline", shell(UNFINISHED), run={"work_seconds": 1.5}, measured=False
    ),
    "a code of the program's own": Case(9, "exit code 9", shell("exit 9"), measured=False),
    "a signal of its own": Case(134, "ended by signal 6", shell("kill -ABRT $$"), measured=False),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name, marks=[pytest.mark.slow] if name == "75" else []) for name, case in CASES.items()],
)
async def test_exit(tmp_path: Path, case: Case) -> None:
    """The run ends with the exit and its reason, and whatever was measured until then is uploaded with it."""
    tree = review_tree(tmp_path)
    if case.change is not None:
        case.change(tree)
    environment = {"DRIVER_PROGRAM_REVIEW": case.program} if case.program else {}
    tables = {"run": {"attempts": 1, **case.run}, "workspace": {"directory": tree}, "fault": case.faults}
    async with (
        running_stub(scenario(**tables)) as stub,
        driving(stub, tmp_path / "workspace", **environment) as driver,
    ):
        ended = await driver.wait_event("run.ended")
        stop_signal(driver)
        assert await driver.exit() == 0
    assert (ended["outcome"], ended["exit"]) == ("FAILED" if case.exit else "COMPLETED", case.exit)
    if case.reason is not None:
        assert re.search(case.reason, ended["reason"])
    result = stub.state.results.newest("run-1")
    if case.uploaded is None:
        assert result is None
        return
    assert result is not None
    assert result.exit == case.exit
    if case.measured:
        files = files_of(stub)
        assert {"out/result.json", "out/usage.json", "out/runner-debug.json"} <= set(files)
        assert json.loads(files["out/runner-debug.json"])["exit"] == case.exit
        assert len(json.loads(files["out/result.json"])["coverage"]) == (0 if case.change else 4)


async def test_exit_143(tmp_path: Path) -> None:
    """A driver that is stopped in the middle hands the run back as INTERRUPTED, with what was measured until then."""
    tables = {"fault": [{"at": "model", "nth": 2, "what": "stall"}], "run": {"work_seconds": 100}}
    async with running_stub(scenario(**tables)) as stub, driving(stub, tmp_path / "workspace") as driver:
        await stub.wait_for(lambda: stub.state.faults.calls.get("model", 0) >= 2)
        stop_signal(driver)
        ended = await driver.wait_event("run.ended")
        assert await driver.exit() == 0
    assert (ended["outcome"], ended["exit"]) == ("INTERRUPTED", 143)
    files = files_of(stub)
    assert json.loads(files["out/runner-debug.json"])["exit"] == 143
    states = {one.get("reason", one["state"]) for one in json.loads(files["out/result.json"])["coverage"]}
    assert "the program was asked to stop" in states
