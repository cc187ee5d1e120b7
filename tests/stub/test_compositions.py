"""The composition that follows a review: when there is one, what it is told, and how its run goes on."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.stub.errors import ScenarioError
from driver.stub.runs import Runs, State
from driver.stub.scenario import parse_scenario
from tests.stub.support import Caller, FakeTime, calling
from tests.stub.test_runs import claimed, seconds, silent, terms

OBSERVATION = {
    "practiceSlug": "naming",
    "outcome": "NOT_MET",
    "severity": "MINOR",
    "summary": "Shouts.",
    "citations": [{"path": "repos/reviewed/a.txt", "startLine": 2, "endLine": 2, "quote": "TWO"}],
}
COMPLETED = {"outcome": "COMPLETED", "exit": 0}


def review(**facts: Any) -> dict[str, Any]:
    return {"run": {"compose": True, **facts}}


async def reviewed(caller: Caller, *observations: dict[str, Any], end: dict[str, Any] | None = None) -> None:
    """Claim the review, have these observations admitted, and end it."""
    assert (await caller.next()).status_code == 200
    admission = await caller.post("runtime/observations", {"observations": list(observations)})
    assert len(admission.json()["admitted"]) == len(observations)
    assert (await caller.post("end", end or COMPLETED)).json()["result"] == "ENDED"


@pytest.mark.anyio
async def test_a_review_is_followed_by_its_composition() -> None:
    """A new run of the same subject, whose epoch goes on; its context has what was admitted, with ids and digest."""
    async with calling(review(attempts=1, compose={"work_seconds": 30, "lease_seconds": 7})) as caller:
        await reviewed(caller, OBSERVATION)
        admitted = caller.stub.state.admissions["run-1", 1]
        claim = (await caller.next(kinds=("REVIEW", "REVIEW_COMPOSE"))).json()["run"]
        assert claim == {
            "id": "run-1-compose",
            "kind": "REVIEW_COMPOSE",
            "subject": "review:1",
            "epoch": 2,
            "attempt": 0,
        }
        context = (await caller.get("context")).json()
        assert context == {
            "kind": "REVIEW_COMPOSE",
            "model": {"id": "scripted-model", "wire": "responses"} | _unknown(context),
            "workSeconds": 30,
            "observations": [OBSERVATION | {"id": admitted.answer.admitted[0].id}],
            "digest": admitted.answer.digest,
            "channels": {
                "inline": {"maxUnits": 20, "maxCharacters": 2000},
                "summary": {"maxUnits": 20, "maxCharacters": 4000},
            },
            "history": [],
        }
        assert (await caller.get("runtime")).status_code == 200
        await caller.post("end", COMPLETED)
        assert (await caller.next(kinds=("REVIEW", "REVIEW_COMPOSE"))).status_code == 204


def _unknown(context: dict[str, Any]) -> dict[str, Any]:
    """What the model's entry has where nothing is known of the context's size."""
    return {"contextTokens": None} if "contextTokens" in context["model"] else {}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("run", "observations", "end"),
    [
        ({"compose": False}, [OBSERVATION], COMPLETED),
        ({"compose": True}, [], COMPLETED),
        ({"compose": True, "attempts": 1}, [OBSERVATION], {"outcome": "FAILED", "exit": 1, "reason": "x"}),
    ],
)
async def test_nothing_follows(run: dict[str, Any], observations: list[dict[str, Any]], end: dict[str, Any]) -> None:
    """No composition without the scenario's word, without an admitted observation, or after a failure."""
    async with calling({"run": run}) as caller:
        await reviewed(caller, *observations, end=end)
        assert [run.terms.id for run in caller.stub.state.runs] == ["run-1"]


@pytest.mark.anyio
async def test_a_repeated_end_queues_no_second_one() -> None:
    """The end that is told twice has one composition."""
    async with calling(review()) as caller:
        await reviewed(caller, OBSERVATION)
        assert (await caller.post("end", COMPLETED)).json()["result"] == "ALREADY_ENDED"
        assert [run.terms.id for run in caller.stub.state.runs] == ["run-1", "run-1-compose"]


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        ({"kind": "TURN", "compose": True}, "`compose` goes with the kind REVIEW only"),
        ({"compose": {"subject": "x"}}, "run.0.compose.subject"),
        ({"compose": 3}, "run.0.compose"),
        ([{"compose": True}, {"id": "run-1-compose"}], "two runs are called run-1-compose"),
    ],
)
def test_a_scenario_that_is_wrong(run: Any, complaint: str) -> None:
    """One line names what is wrong."""
    with pytest.raises(ScenarioError, match=complaint):
        parse_scenario({"run": run})


@given(lost=st.lists(st.booleans(), max_size=4), again=st.integers(0, 4))
def test_epochs_go_on_and_no_attempt_is_spent(lost: list[bool], again: int) -> None:
    """However often either run is claimed again, no epoch comes twice, and continuing costs no attempt."""
    time = FakeTime()
    runs = Runs(time, silent)
    runs.queue(terms("review", attempts=9))
    epochs = []
    for charged in lost:
        epochs.append(claimed(runs).epoch)
        runs.requeue("review", epochs[-1], "FAILED", charged=charged, after=seconds(0))
    epochs.append(claimed(runs).epoch)
    runs.end("review", epochs[-1], "COMPLETED")
    ended = runs.get("review")
    run = runs.continue_as("review", terms("compose", kind="REVIEW", attempts=9))
    assert (run.state, run.epoch, run.attempt) == (State.QUEUED, ended.epoch, sum(lost))
    for _ in range(again):
        epochs.append(claimed(runs).epoch)
        time.advance(61)
        runs.reap()
    epochs.append(claimed(runs).epoch)
    assert epochs == list(range(1, len(epochs) + 1))
    assert (run.attempt, ended.epoch) == (sum(lost) + again, len(lost) + 1)


def test_only_what_has_ended_is_continued() -> None:
    """A live run, and a run of another subject, are no next step."""
    runs = Runs(FakeTime(), silent)
    runs.queue(terms("review"))
    with pytest.raises(ValueError, match="cannot be continued"):
        runs.continue_as("review", terms("compose"))
    runs.end("review", claimed(runs).epoch, "COMPLETED")
    with pytest.raises(ValueError, match="cannot be continued"):
        runs.continue_as("review", terms("compose", subject="review:2"))
