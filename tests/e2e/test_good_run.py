"""One good run from end to end: the real entrypoint, a real git range, the bundled program, a real socket."""

import json
from pathlib import Path

import pytest

from driver.stub.server import running_stub
from tests.e2e.driving import driving, files_of, processes_below, scenario, stop_signal

pytestmark = pytest.mark.anyio

# What a good run logs, in order. Model calls and the program's output are interleaved, and checked apart.
GOOD_RUN = [
    "driver.started",
    "run.pulled",
    "gate.passed",
    "workspace.emptied",
    "workspace.unpacked",
    "review.prepared",
    "change.derived",
    "door.opened",
    "program.started",
    "program.ended",
    "door.closed",
    "review.measured",
    "result.packed",
    "result.uploaded",
    "run.ended",
    "driver.stopping",
    "driver.stopped",
]


@pytest.mark.parametrize("wire", ["responses", "chat", "messages"])
async def test_review(tmp_path: Path, wire: str) -> None:
    """On each wire a review is pulled, measured, uploaded and ended, and every event is logged in order."""
    workspace = tmp_path / "workspace"
    async with running_stub(scenario(model={"wire": wire})) as stub, driving(stub, workspace) as driver:
        await stub.wait_ended()
        await driver.wait_event("run.ended")
        stop_signal(driver)
        assert await driver.exit() == 0

    in_order = driver.names("model.call.accepted", "model.call.released", "program.output", "token.exposed")
    # Gate and pull run side by side, so either may be first.
    assert sorted(in_order[:3]) == sorted(GOOD_RUN[:3])
    assert in_order[3:] == GOOD_RUN[3:]

    assert driver.named("run.ended")[0] | {"time": ""} == {
        "time": "",
        "level": "info",
        "event": "run.ended",
        "run.id": "run-1",
        "run.epoch": 1,
        "run.kind": "REVIEW",
        "subject.key": "review:1",
        "outcome": "COMPLETED",
        "exit": 0,
        "answer": "ENDED",
    }
    run = next(iter(stub.state.runs))
    assert (run.state, run.outcome, run.epoch) == ("ENDED", "COMPLETED", 1)
    assert processes_below(workspace) == []


async def test_uploaded_result(tmp_path: Path) -> None:
    """The uploaded archive is what `out/` held: observations with file, line and quote, usage, the door's report."""
    workspace = tmp_path / "workspace"
    async with running_stub(scenario()) as stub, driving(stub, workspace) as driver:
        await driver.wait_event("run.ended")
        stop_signal(driver)
        assert await driver.exit() == 0
    files = files_of(stub)
    assert set(files) == {"out/driver.json", "out/result.json", "out/runner-debug.json", "out/usage.json"}
    result = json.loads(files["out/result.json"])
    assert [(o["practiceSlug"], o["outcome"], o.get("severity")) for o in result["observations"]] == [
        ("errors-are-specific", "NOT_MET", "MAJOR"),
        ("no-open-ends", "NOT_MET", "MINOR"),
        ("no-debug-leftovers", "NOT_MET", "MINOR"),
        ("tests-come-along", "MET", None),
    ]
    citation = result["observations"][0]["citations"][0]
    assert (citation["path"], citation["startLine"]) == ("repos/reviewed/stock/shelf.py", 14)
    assert citation["quote"].strip() == "except:"
    assert {practice["state"] for practice in result["coverage"]} == {"RECORDED"}
    assert [a["index"] for a in result["admission"]["admitted"]] == [0, 1, 2, 3]
    report = json.loads(files["out/driver.json"])
    usage = json.loads(files["out/usage.json"])
    assert report["calls"] == report["answered"] == 5
    assert report["inputTokens"] == sum(model["inputTokens"] for model in usage["models"].values())
    uploaded = driver.named("result.uploaded")[0]
    kept = stub.state.results.newest("run-1")
    assert kept is not None
    assert (uploaded["digest"], uploaded["bytes"]) == (kept.digest, len(kept.body))


async def test_nothing_that_the_driver_holds_is_logged(tmp_path: Path) -> None:
    """Neither the token nor the door's key stands in any line, whatever a program prints of its environment."""
    workspace = tmp_path / "workspace"
    program = 'sh -c \'env; env | base64 -w0; echo; tr "\\\\0" "\\\\n" < /proc/self/environ; exit 1\''
    async with (
        running_stub(scenario()) as stub,
        driving(stub, workspace, DRIVER_PROGRAM_REVIEW=program, DRIVER_LOG_LEVEL="debug") as driver,
    ):
        await driver.wait_event("run.ended", outcome="FAILED", exit=1)
        stop_signal(driver)
        assert await driver.exit() == 0
    log = json.dumps(driver.events)
    assert "OPENAI_API_KEY=***" in log
    assert stub.token not in log
    assert stub.url.removeprefix("http://") not in json.dumps(driver.named("program.output"))
