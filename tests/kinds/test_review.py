"""The REVIEW runner: from a held run to a delivered result and an outcome."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from driver.errors import ArchiveRefused, ClaimLost, DriverError, KindFailed, TransferFailed, WorkspaceError
from driver.kind import Outcome, StopReason
from kinds.review import Review, command
from tests.kinds.review_case import Case, bundled, context, make_case, script, small_change

pytestmark = pytest.mark.anyio


@pytest.fixture
def case(tmp_path: Path) -> Case:
    case = make_case(tmp_path)
    case.filling.append(small_change)
    return case


def program(case: Case, text: str) -> None:
    """Let the measuring program be this Python text."""
    case.bundled = bundled((sys.executable, "-c", text))


GOOD = "open('out/result.json', 'w').write('{}')"


async def review(case: Case) -> Outcome:
    with anyio.fail_after(20):
        return await Review().run(case.held())


async def test_a_good_review(case: Case) -> None:
    """View, hints, program and result, in this order; the outcome is a completion."""
    case.filling.append(
        lambda root: script(root / "inputs" / "precompute" / "a", '#!/bin/sh\ncp "$3/files.json" "$4"\n')
    )
    text = """
import json, os
hints, change = json.load(open('work/precompute/a.json')), json.load(open('work/change/files.json'))
assert hints == change == [{'path': 'a.txt', 'status': 'modified', 'added': 1, 'deleted': 1, 'binary': False,
    'hunks': [[1, 2]]}], change
assert os.environ['DRIVER_DOOR_URL'] == 'http://127.0.0.1:9'
json.dump({}, open('out/result.json', 'w'))
"""
    program(case, text)
    assert await review(case) == Outcome("COMPLETED", exit=0)
    assert case.results.delivered == [(0, ["result.json"])]
    assert case.door_open is False
    names = [record["event"] for record in case.sink.records if not record["event"].startswith("program.")]
    assert names == ["review.prepared", "change.derived", "precompute.script_ended", "review.measured"]
    assert case.sink.events("review.") == [
        {"event": "review.prepared", "pull_request": 7, "job": "job-1"},
        {"event": "review.measured", "exit": 0},
    ]


@pytest.mark.parametrize(
    ("text", "exit", "reason"),
    [
        ("raise SystemExit(1)", 1, "no complete output"),
        ("raise SystemExit(2)", 2, "unhandled error in the program"),
        ("raise SystemExit(75)", 75, "measured, but the observations never reached the gateway"),
        ("raise SystemExit(9)", 9, "exit code 9"),
        ("import os; os.kill(os.getpid(), 9)", 137, "ended by signal 9"),
        ("pass", 1, "the program ended with 0 and left no out/result.json"),
    ],
)
async def test_a_program_that_fails(case: Case, text: str, exit: int, reason: str) -> None:
    """Its exit is the run's, what it wrote is delivered all the same, and the reason is told."""
    program(case, f"open('out/usage.json', 'w').write('{{}}')\n{text}")
    assert await review(case) == Outcome("FAILED", exit=exit, reason=reason)
    assert case.results.delivered == [(exit, ["usage.json"])]


async def test_a_program_that_cannot_be_started(case: Case) -> None:
    """A command that does not exist is a run without output."""
    case.bundled = bundled(("/nonexistent/program",))
    outcome = await review(case)
    assert (outcome.outcome, outcome.exit) == ("FAILED", 1)
    assert outcome.reason is not None
    assert "/nonexistent/program" in outcome.reason
    assert case.results.delivered == [(1, [])]


@pytest.mark.parametrize(
    ("stop", "exit", "reason"),
    [
        (StopReason.DEADLINE, 124, "stopped at the work deadline"),
        (StopReason.STOPPING, 143, "the sandbox is stopping"),
    ],
)
async def test_a_stop_in_the_middle(case: Case, stop: StopReason, exit: int, reason: str) -> None:
    """The program is ended, may put its files in order, and what `out/` holds is delivered with the stop's exit."""
    text = """
import signal, sys
def end(*_):
    open('out/result.json', 'w').write('{}')
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print('measuring', flush=True)
signal.pause()
"""
    program(case, text)
    outcomes: list[Outcome] = []

    async def run() -> None:
        outcomes.append(await review(case))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await case.sink.printed("measuring")
        case.sections.stop(stop)
    assert outcomes == [Outcome("FAILED", exit=exit, reason=reason)]
    assert case.results.delivered == [(exit, ["result.json"])]


async def test_a_stop_before_the_workspace_is_there(case: Case) -> None:
    """There is nothing to deliver then."""
    case.sections.stop(StopReason.DEADLINE)

    async def prepare() -> None:
        await anyio.sleep_forever()

    case.preparing = prepare
    assert await review(case) == Outcome("FAILED", exit=124, reason="stopped at the work deadline")
    assert case.results.delivered == []


async def test_a_lost_claim_delivers_nothing(case: Case) -> None:
    """A cancel from outside ends the program and everything after it."""
    program(case, "import signal; print('measuring', flush=True); signal.pause()")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(review, case)
        await case.sink.printed("measuring")
        tasks.cancel_scope.cancel()
    assert case.results.delivered == []


@pytest.mark.parametrize("error", [ArchiveRefused("a link"), TransferFailed("too short"), WorkspaceError("no space")])
async def test_a_workspace_that_cannot_be_had(case: Case, error: DriverError) -> None:
    """Exit 1 with the reason; nothing is delivered, since there is no `out/`."""

    async def prepare() -> None:
        raise error

    case.preparing = prepare
    with pytest.raises(KindFailed, match=str(error)) as failure:
        await review(case)
    assert failure.value.exit == 1
    assert case.results.delivered == []


async def test_a_lost_claim_while_preparing(case: Case) -> None:
    """What the gateway says of the claim is the loop's business and passes through."""

    async def prepare() -> None:
        raise ClaimLost

    case.preparing = prepare
    with pytest.raises(ClaimLost):
        await review(case)


def edit(name: str, **changes: Any) -> Callable[[Path], None]:
    """A step that changes fields of a JSON file of the workspace."""

    def step(root: Path) -> None:
        path = root / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return step


@pytest.mark.parametrize(
    ("step", "exit", "reason"),
    [
        (edit("task.json", schemaVersion=2), 42, "schemaVersion: 2 is not 3"),
        (edit("task.json", manifest="/etc"), 42, "manifest: must be relative to the workspace"),
        (lambda root: (root / "task.json").unlink(), 42, "task: task.json cannot be read (No such file or directory)"),
        (edit("context/metadata.json", baseCommit=""), 2, "context/metadata.json: baseCommit must be a full commit"),
    ],
)
async def test_a_stage_that_fails(case: Case, step: Callable[[Path], None], exit: int, reason: str) -> None:
    """Its exit is delivered with an empty `out/`; no program is started."""
    case.filling.append(step)
    program(case, "open('work/started', 'w')")
    outcome = await review(case)
    assert (outcome.outcome, outcome.exit) == ("FAILED", exit)
    assert outcome.reason is not None
    assert outcome.reason.startswith(reason)
    assert case.results.delivered == [(exit, [])]
    assert not (case.workspace.layout.work / "started").exists()


async def test_a_result_that_is_not_acknowledged(case: Case) -> None:
    """The delivery's own failure, exit 43, is the run's."""
    program(case, GOOD)
    case.results.failure = KindFailed(43, "not acknowledged")
    with pytest.raises(KindFailed, match="not acknowledged") as failure:
        await review(case)
    assert failure.value.exit == 43


@pytest.mark.parametrize("task", ["", 7, None, ["task.json"], "x" * 5000])
async def test_a_context_that_is_wrong(case: Case, task: Any) -> None:
    """The field is named, and nothing is downloaded."""
    case.context = context(task=task)
    with pytest.raises(KindFailed, match=r"^context: task: ") as failure:
        await review(case)
    assert failure.value.exit == 42
    assert not (case.workspace.layout.root / "task.json").exists()


async def test_the_task_may_lie_elsewhere(case: Case) -> None:
    """The context tells where; a place outside the workspace is none."""
    case.context = context(task="inputs/task.json")

    def move(root: Path) -> None:
        (root / "inputs").mkdir()
        (root / "task.json").rename(root / "inputs" / "task.json")

    case.filling.append(move)
    program(case, GOOD)
    assert (await review(case)).outcome == "COMPLETED"


async def test_a_task_outside_the_workspace(case: Case) -> None:
    """A location that climbs is refused as a fault of the envelope."""
    case.context = context(task="../task.json")
    outcome = await review(case)
    assert (outcome.exit, outcome.reason) == (42, "task: must hold no `.`, `..` or empty part")


def test_only_the_bundled_program_gets_our_arguments(case: Case) -> None:
    """A command of somebody else's is run as it was given."""
    case.bundled = bundled(("python", "-I", "-m", "kinds.programs.measure"))
    assert " ".join(command(case.held(), "task.json")) == (
        "python -I -m kinds.programs.measure --task task.json --wire responses --session-heap 1000 --session-size 100"
    )
    case.context = context(model={"id": "m", "wire": "chat", "contextTokens": 9000})
    assert list(command(case.held(), "task.json"))[-2:] == ["--context-tokens", "9000"]
    case.bundled = bundled(("my-program", "--flag"))
    assert list(command(case.held(), "task.json")) == ["my-program", "--flag"]
