"""A review and the composition of its feedback, with the real driver and the real programs."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from driver.stub.runs import AgentRun
from driver.stub.scenario import Scenario
from driver.stub.server import Stub, running_stub
from tests.e2e.driving import Driver, driving, files_of, scenario, shell, stop_signal

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

COMPOSE = {"attempts": 1, "compose": {"attempts": 1}}
SECONDS = 90.0
COMPOSITION = "run-1-compose"

# What the scripted model finds in the example repository.
UNITS = [
    ("errors-are-specific", {"kind": "INLINE", "path": "stock/shelf.py", "line": 14}),
    ("no-debug-leftovers", {"kind": "INLINE", "path": "stock/load.py", "line": 12}),
    ("no-open-ends", {"kind": "INLINE", "path": "stock/shelf.py", "line": 16}),
]


def feedback_of(stub: Stub) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(files_of(stub, COMPOSITION)["out/feedback.json"])
    return document


def practices_of(stub: Stub) -> dict[str, str]:
    """The practice of each admitted observation, by its id."""
    [admissions] = stub.state.admissions.values()
    return {one["id"]: one["practiceSlug"] for one in admissions.observations}


def complete(stub: Stub) -> None:
    """The feedback stands on what was admitted, all of it, and on nothing else."""
    feedback, practices = feedback_of(stub), practices_of(stub)
    [admissions] = stub.state.admissions.values()
    assert feedback["digest"] == admissions.answer.digest
    units = [(practices[id], unit["placement"]) for unit in feedback["units"] for id in unit["observationIds"]]
    assert sorted(units, key=lambda unit: unit[0]) == UNITS
    assert [one["practiceSlug"] for one in feedback["uncovered"]] == ["tests-come-along"]
    assert feedback["summary"].startswith("3 of 4 practices")


async def ended(stub: Stub, driver: Driver) -> None:
    """Wait until every run has ended, and stop the driver then."""
    with anyio.fail_after(SECONDS):
        await stub.wait_ended()
    stop_signal(driver)
    assert await driver.exit() == 0


def run_of(stub: Stub) -> AgentRun:
    return stub.state.runs.get(COMPOSITION)


def downloads(stub: Stub) -> int:
    return len(stub.state.journal.named("request.received", call="workspace"))


@pytest.mark.parametrize("wire", ["responses", "chat", "messages"])
async def test_review_and_composition_in_one_sandbox(tmp_path: Path, wire: str) -> None:
    """The workspace is downloaded once and used again; each NOT_MET observation has a unit on its line."""
    async with (
        running_stub(scenario(run=COMPOSE, model={"wire": wire})) as stub,
        driving(stub, tmp_path / "w") as driver,
    ):
        await ended(stub, driver)
    assert [(run.outcome, run.epoch, run.attempt) for run in stub.state.runs] == [
        ("COMPLETED", 1, 0),
        ("COMPLETED", 2, 0),
    ]
    assert downloads(stub) == 1
    composed = {"run.kind": "REVIEW_COMPOSE"}
    assert [line["event"] for line in driver.events if line["event"].startswith("workspace.")] == [
        "workspace.emptied",
        "workspace.unpacked",
        "workspace.reused",
    ]
    assert driver.named("compose.prepared", observations=4, reused=True, **composed)
    assert driver.named("compose.composed", exit=0, **composed)
    complete(stub)
    assert sorted(files_of(stub, COMPOSITION)) == [
        "out/driver.json",
        "out/feedback.json",
        "out/runner-debug.json",
        "out/usage.json",
    ]
    assert "out/feedback.json" not in files_of(stub)
    assert json.loads(files_of(stub, COMPOSITION)["out/driver.json"])["firstContents"] == 0


async def test_a_fresh_sandbox_downloads(tmp_path: Path) -> None:
    """A composition that was interrupted goes on in another sandbox, from a download of its own."""
    async with running_stub(composing(run=COMPOSE)) as stub:
        async with driving(stub, tmp_path / "first") as driver:
            with anyio.fail_after(SECONDS):
                await driver.wait_event("compose.prepared", reused=True)
            stop_signal(driver)
            assert await driver.exit() == 0
        async with driving(stub, tmp_path / "second") as driver:
            await ended(stub, driver)
    assert driver.named("workspace.not_reused", reason="this driver has prepared none")
    assert driver.named("compose.prepared", reused=False)
    assert downloads(stub) == 2
    assert (run_of(stub).outcome, run_of(stub).epoch, run_of(stub).attempt) == ("COMPLETED", 3, 0)
    complete(stub)


async def test_a_composition_without_its_review(tmp_path: Path) -> None:
    """A composition is what its context says: a driver that has seen no review downloads and composes."""
    observation = {
        "id": "o-1",
        "practiceSlug": "naming",
        "outcome": "NOT_MET",
        "severity": "MINOR",
        "summary": "A shelf is no list.",
        "citations": [{"path": "repos/reviewed/README.md", "startLine": 1, "endLine": 1, "quote": "# Stock"}],
    }
    context = {"observations": [observation], "digest": "sha-256=:x:", "channels": {}, "history": []}
    alone = scenario(run={"id": COMPOSITION, "kind": "REVIEW_COMPOSE", "attempts": 1, "context": context})
    async with running_stub(alone) as stub, driving(stub, tmp_path / "w") as driver:
        await ended(stub, driver)
    assert driver.named("workspace.not_reused", reason="this driver has prepared none")
    assert feedback_of(stub) == {
        "schemaVersion": 1,
        "digest": "sha-256=:x:",
        "units": [
            {
                "observationIds": ["o-1"],
                "body": "A shelf is no list. (naming, minor)",
                "placement": {"kind": "SUMMARY"},
            }
        ],
        "summary": "1 of 1 practices that were looked at are not met: naming.",
        "uncovered": [],
        "refused": [],
        "refusals": 0,
    }


async def test_a_context_that_is_wrong(tmp_path: Path) -> None:
    """Exit 42, and the field is named; nothing is downloaded."""
    wrong = scenario(run={"id": COMPOSITION, "kind": "REVIEW_COMPOSE", "attempts": 1, "context": {"digest": "d"}})
    async with running_stub(wrong) as stub, driving(stub, tmp_path / "w") as driver:
        await ended(stub, driver)
    [end] = driver.named("run.ended")
    assert (end["outcome"], end["exit"]) == ("FAILED", 42)
    assert end["reason"] == "context: observations: Field required"
    assert downloads(stub) == 0


def composing(**facts: Any) -> Scenario:
    """A scenario in which the composition's second call takes its time, and something strikes meanwhile."""
    slow = {"match": "# Observations", "turns": [{"rule": "compose"}, {"rule": "compose", "delay_seconds": 3}]}
    return scenario(model={"session": [slow]}, **facts)


async def test_a_composition_whose_claim_is_lost(tmp_path: Path) -> None:
    """It is stopped, nothing of it is uploaded, and the next claim composes it all under a later epoch."""
    run = {"attempts": 1, "compose": {"attempts": 3, "lease_seconds": 60}}
    async with running_stub(composing(run=run)) as stub, driving(stub, tmp_path / "w") as driver:
        with anyio.fail_after(SECONDS):
            await driver.wait_event("compose.prepared")
            await driver.wait_event("program.output", text=took_a_unit(stub))
        stub.state.runs.take_away(COMPOSITION)
        await ended(stub, driver)
    assert driver.named("claim.lost", **{"run.id": COMPOSITION, "run.epoch": 2})
    assert [(result.run, result.epoch) for result in stub.state.results] == [("run-1", 1), (COMPOSITION, 3)]
    assert (run_of(stub).outcome, run_of(stub).attempt) == ("COMPLETED", 1)
    complete(stub)


def took_a_unit(stub: Stub) -> str:
    """The line that the program prints once the units of the first turn were taken; this one is the last of them."""
    id = next(id for id, practice in practices_of(stub).items() if practice == "no-debug-leftovers")
    return f"[composition] took a unit at stock/load.py:12: {id}"


async def test_a_stop_in_the_middle(tmp_path: Path) -> None:
    """SIGTERM: what was taken until then is uploaded with 143, and the run is handed on free of charge."""
    async with (
        running_stub(composing(run=COMPOSE)) as stub,
        driving(stub, tmp_path / "w", DRIVER_STOP_GRACE="20") as driver,
    ):
        with anyio.fail_after(SECONDS):
            await driver.wait_event("compose.prepared")
            await driver.wait_event("program.output", text=took_a_unit(stub))
        stop_signal(driver)
        assert await driver.exit() == 0
    assert driver.named("run.ended", outcome="INTERRUPTED", exit=143, **{"run.id": COMPOSITION})
    feedback = feedback_of(stub)
    assert (len(feedback["units"]), feedback["summary"]) == (3, None)
    assert (run_of(stub).outcome, run_of(stub).attempt) == (None, 0)


async def test_refused_units_are_reported(tmp_path: Path) -> None:
    """A model that invents and misplaces: nothing of it gets through, and the feedback says what and why."""
    invented = {"observationIds": ["made-up"], "body": "x", "placement": {"kind": "SUMMARY"}}
    script = {
        "match": "# Observations",
        "turns": [
            {"calls": [{"name": "report_feedback", "arguments": {"units": [invented, {"body": "y"}]}}]},
            {"calls": [{"name": "report_summary", "arguments": {"text": "I could say nothing."}}]},
        ],
    }
    async with (
        running_stub(scenario(run=COMPOSE, model={"session": [script]})) as stub,
        driving(stub, tmp_path / "w") as driver,
    ):
        await ended(stub, driver)
    assert run_of(stub).outcome == "COMPLETED"
    feedback = feedback_of(stub)
    assert (feedback["units"], feedback["summary"], feedback["refusals"]) == ([], "I could say nothing.", 2)
    first, second = feedback["refused"]
    assert first["reason"].startswith("'made-up' is no admitted observation; without a unit are ")
    assert "made-up" in first["unit"]
    assert second["reason"] == "`observationIds` must be a list of ids that is not empty"
    assert {one["id"] for one in feedback["uncovered"]} == practices_of(stub).keys()


async def test_a_review_that_spoils_its_inputs(tmp_path: Path) -> None:
    """What a program wrote over an input is not what its composition works on: the archive is downloaded again."""
    measure = [sys.executable, "-I", "-m", "kinds.programs.measure", "--task", "work/kept.json", "--wire", "responses"]
    sizes = ["--session-heap", "268435456", "--session-size", "3145728"]
    spoil = f"cp task.json work/kept.json; chmod u+w task.json; echo {{}} > task.json; {shlex.join([*measure, *sizes])}"
    async with (
        running_stub(scenario(run=COMPOSE)) as stub,
        driving(stub, tmp_path / "w", DRIVER_PROGRAM_REVIEW=shell(spoil)) as driver,
    ):
        await ended(stub, driver)
    assert driver.named("workspace.not_reused", reason="its inputs were changed: task.json")
    assert run_of(stub).outcome == "COMPLETED"
    complete(stub)
