"""Each bundled scenario with a real driver: what its first line says happens."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from driver.stub.scenario import bundled_scenarios, load_scenario
from driver.stub.server import Stub, running_stub
from tests.e2e.driving import Driver, driving, files_of, processes_below, requests_after, stop_signal

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(200)]

# In these somebody waits, for up to two minutes.
SLOW = {
    *("claim-lost", "context-slow", "deadline-moved", "model-silent", "observations-unreachable"),
    *("renew-fails", "renew-stalls", "workspace-stalls"),
}
SECONDS = 180.0

# Runs that the driver does not end, and runs that do not end at all.
NEVER_TOLD = {"token-revoked", "renew-stalls"}
NEVER_ENDED = {"token-revoked", "unknown-kind"}


def calls(stub: Stub, place: str) -> list[dict[str, Any]]:
    """What was noted of each call at a place."""
    return [entry.fields for entry in stub.state.journal.named("request.received", call=place)]


def completed(stub: Stub, driver: Driver) -> None:
    """The run was completed under its first claim, with a result of four recorded practices."""
    run = stub.state.runs.get("run-1")
    assert (run.outcome, run.epoch, run.attempt) == ("COMPLETED", 1, 0)
    recorded(stub)
    assert driver.named("run.ended", outcome="COMPLETED", exit=0)


def recorded(stub: Stub) -> None:
    coverage = json.loads(files_of(stub)["out/result.json"])["coverage"]
    assert [practice["state"] for practice in coverage] == ["RECORDED"] * 4


def failed(stub: Stub, driver: Driver, exit: int | None, reason: str) -> None:
    ended = driver.named("run.ended")[-1]
    assert (ended["outcome"], ended.get("exit")) == ("FAILED", exit)
    assert reason in ended["reason"]


def nothing_was_run(stub: Stub, driver: Driver) -> None:
    failed(stub, driver, 1, "twice")
    assert driver.named("program.started") == []
    assert stub.state.results.newest("run-1") is None
    assert len(calls(stub, "workspace")) == 2


def claim_lost(stub: Stub, driver: Driver) -> None:
    assert driver.named("claim.lost", **{"run.epoch": 1})
    run = stub.state.runs.get("run-1")
    assert (run.outcome, run.epoch, run.attempt) == ("COMPLETED", 2, 1)
    recorded(stub)


def context_slow(stub: Stub, driver: Driver) -> None:
    completed(stub, driver)
    assert len(calls(stub, "context")) == 1


def deadline_moved(stub: Stub, driver: Driver) -> None:
    failed(stub, driver, 124, "stopped at the work deadline")
    result = stub.state.results.newest("run-1")
    assert result is not None
    assert result.exit == 124


def composed(stub: Stub, driver: Driver) -> None:
    completed(stub, driver)
    run = stub.state.runs.get("run-1-compose")
    assert (run.outcome, run.epoch, run.attempt) == ("COMPLETED", 2, 0)
    feedback = json.loads(files_of(stub, "run-1-compose")["out/feedback.json"])
    assert len(feedback["units"]) == 3
    assert driver.named("workspace.reused")


def answered(*runs: str) -> Callable[[Stub, Driver], None]:
    def check(stub: Stub, driver: Driver) -> None:
        assert [(run, end.outcome) for run, _, end in stub.state.ends] == [(run, "COMPLETED") for run in runs]
        assert all(end.answer and end.answer["factIds"] for _, _, end in stub.state.ends)
        assert driver.named("run.ended", outcome="COMPLETED", exit=0, answer="ENDED")

    return check


def digest_refused(reason: str) -> Callable[[Stub, Driver], None]:
    def check(stub: Stub, driver: Driver) -> None:
        failed(stub, driver, 77, reason)
        assert [end.answer for _, _, end in stub.state.ends] == [None]
        assert stub.state.runs.get("run-1").attempt == 0

    return check


def digest_refused_at_end(stub: Stub, driver: Driver) -> None:
    end_refused(stub, driver)
    assert stub.state.ends == []


def end_lost_reply(stub: Stub, driver: Driver) -> None:
    completed(stub, driver)
    assert driver.named("run.ended")[0]["answer"] == "ALREADY_ENDED"
    assert len(calls(stub, "end")) == 2


def end_refused(stub: Stub, driver: Driver) -> None:
    assert stub.state.runs.get("run-1").outcome == "REFUSED"
    assert driver.named("run.ended")[0]["answer"] == "REFUSED"


def model_made_again(again: int) -> Callable[[Stub, Driver], None]:
    def check(stub: Stub, driver: Driver) -> None:
        completed(stub, driver)
        usage = json.loads(files_of(stub)["out/usage.json"])["models"]["scripted-model"]
        assert usage["retries"] == again
        assert usage["calls"] == usage["answered"] + again

    return check


def model_silent(stub: Stub, driver: Driver) -> None:
    failed(stub, driver, 76, "every model call went unanswered")
    assert json.loads(files_of(stub)["out/runner-debug.json"])["exit"] == 76


def next_unavailable(stub: Stub, driver: Driver) -> None:
    completed(stub, driver)
    failures = driver.named("pull.failed")
    assert len(failures) == 2
    assert failures[0]["again_in"] >= 1


def observations_unreachable(stub: Stub, driver: Driver) -> None:
    failed(stub, driver, 75, "never reached the gateway")
    result = json.loads(files_of(stub)["out/result.json"])
    assert (len(result["observations"]), result["admission"]) == (4, None)


def renew_fails(stub: Stub, driver: Driver) -> None:
    completed(stub, driver)
    assert len(driver.named("lease.renewal_failed")) >= 2
    assert stub.state.journal.named("run.renewed")


def renew_stalls(stub: Stub, driver: Driver) -> None:
    assert driver.named("claim.lost")[0]["reason"] == "no renewal succeeded for three quarters of the lease"
    assert stub.state.runs.get("run-1").outcome == "LOST"
    assert driver.named("run.ended") == []
    for place in ("result", "end", "observations"):
        assert calls(stub, place) == []


def result_lost_reply(stub: Stub, driver: Driver) -> None:
    completed(stub, driver)
    assert len(calls(stub, "result")) == 2
    assert len(stub.state.journal.named("result.kept")) == 1


def token_revoked(stub: Stub, driver: Driver) -> None:
    assert driver.names()[-2:] == ["sandbox.taken_back", "driver.stopped"]
    taken = stub.state.journal.named("sandbox.taken_back")[0].number
    assert requests_after(stub, taken, lambda path: True) == []
    assert driver.named("run.ended") == []


def unknown_kind(stub: Stub, driver: Driver) -> None:
    assert driver.named("run.ended")[0]["outcome"] == "UNSUPPORTED"
    run = stub.state.runs.get("run-1")
    assert (run.outcome, run.attempt) == (None, 0)


def work_erased(stub: Stub, driver: Driver) -> None:
    failed(stub, driver, None, "erased")
    assert stub.state.runs.get("run-1").outcome == "FAILED"
    assert driver.named("workspace.emptied") == []


def workspace_resumed(interruptions: int) -> Callable[[Stub, Driver], None]:
    def check(stub: Stub, driver: Driver) -> None:
        completed(stub, driver)
        answered = stub.state.journal.named("request.answered", call="workspace")
        assert [entry.fields["status"] for entry in answered] == [200, *[206] * interruptions]
        assert len(driver.named("workspace.interrupted")) == interruptions
        assert driver.named("workspace.restarted") == []

    return check


CHECKS: dict[str, Callable[[Stub, Driver], None]] = {
    "claim-lost": claim_lost,
    "clean": completed,
    "compose": composed,
    "context-slow": context_slow,
    "deadline-moved": deadline_moved,
    "digest": answered("run-1"),
    "digest-refused-at-end": digest_refused_at_end,
    "digest-refused-before": digest_refused("context: refused with 403"),
    "digest-refused-midway": digest_refused("refused by admission"),
    "end-lost-reply": end_lost_reply,
    "end-refused": end_refused,
    "model-cut": model_made_again(1),
    "model-malformed-frame": model_made_again(1),
    "model-refuses": model_made_again(2),
    "model-silent": model_silent,
    "next-unavailable": next_unavailable,
    "observations-unreachable": observations_unreachable,
    "renew-fails": renew_fails,
    "renew-stalls": renew_stalls,
    "result-lost-reply": result_lost_reply,
    "result-wrong-digest": result_lost_reply,
    "runtime-wrong-digest": nothing_was_run,
    "token-revoked": token_revoked,
    "turn": answered("turn-1", "digest-1"),
    "unknown-kind": unknown_kind,
    "work-erased": work_erased,
    "workspace-cut": workspace_resumed(2),
    "workspace-stalls": workspace_resumed(1),
    "workspace-wrong-digest": nothing_was_run,
}
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in bundled_scenarios()]


@pytest.mark.parametrize("name", NAMES)
async def test_scenario(tmp_path: Path, name: str) -> None:
    """It goes as its first line says, the driver ends with 0, and nothing of the run is left."""
    workspace = tmp_path / "workspace"
    async with running_stub(load_scenario(name)) as stub, driving(stub, workspace) as driver:
        with anyio.fail_after(SECONDS):
            if name not in NEVER_TOLD:
                await driver.wait_event("run.ended")
            if name not in NEVER_ENDED:
                await stub.wait_ended()
            if name != "token-revoked":  # of which the driver ends by itself
                stop_signal(driver)
            assert await driver.exit() == 0
    CHECKS[name](stub, driver)
    assert stub.state.journal.named("request.failed") == []
    assert processes_below(workspace) == []


def test_every_scenario_is_played() -> None:
    """A scenario that is added is checked too."""
    assert sorted(CHECKS) == bundled_scenarios()
