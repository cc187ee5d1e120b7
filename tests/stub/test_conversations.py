"""The rules of conversations: one live writer, digests that yield, admission, and what an answer may be."""

import json
from typing import Any

import anyio
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from driver.stub.errors import ClaimNotHeld
from driver.stub.runs import Runs, RunTerms, State
from driver.stub.scenario import load_scenario, parse_scenario
from kinds.conversation_context import DigestContext, TurnContext, stated
from tests.stub.support import FakeTime, calling, code_of
from tests.stub.test_runs import seconds, silent

pytestmark = pytest.mark.anyio

KINDS = ("DIGEST", "TURN")
SUBJECTS = ["conversation:1", "conversation:2", "conversation:3"]
TEXT = {"text": "Errors are named.", "factIds": ["feedback-31"]}
COMMON = {"kind", "model", "workSeconds"}


def digest(*faults: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"run": {"kind": "DIGEST"}, "fault": list(faults), **changes}


def withdraw(at: str, nth: int = 1) -> dict[str, Any]:
    return {"at": at, "nth": nth, "what": "withdraw"}


def ended(outcome: str = "COMPLETED", **changes: Any) -> dict[str, Any]:
    answer = TEXT if outcome == "COMPLETED" else None
    return {"outcome": outcome, "exit": 0, "reason": None, "answer": answer, **changes}


async def test_a_digest_and_a_turn_have_contexts_of_their_own() -> None:
    """Without a word in the scenario both kinds get an example that their runners take; a digest asks nothing."""
    both = {"run": [{"kind": "DIGEST"}, {"kind": "TURN"}]}
    async with calling(both) as caller:
        told = {}
        for _ in KINDS:
            claim = (await caller.next(kinds=KINDS)).json()["run"]
            assert claim["subject"] == "conversation:1"
            told[claim["kind"]] = (await caller.get("context")).json()
            assert (await caller.post("end", ended())).json()["result"] == "ENDED"
    own = {kind: {name: value for name, value in told[kind].items() if name not in COMMON} for kind in KINDS}
    assert "question" not in own["DIGEST"]
    assert stated(DigestContext, own["DIGEST"]).answer_chars == 1200
    assert stated(TurnContext, own["TURN"]).question == "What should I look at next in my error handling?"


async def test_the_scenario_may_tell_something_else() -> None:
    """What the scenario says of the context stands in place of the example."""
    run = {"kind": "DIGEST", "subject": "conversation:7", "context": {"answerChars": 5}}
    async with calling({"run": run}) as caller:
        await caller.next(kinds=KINDS)
        context = (await caller.get("context")).json()
    assert (context["conversation"], context["answerChars"]) == ("7", 5)


async def test_a_digest_yields_to_questions() -> None:
    """A question that is queued later is claimed first; one that comes while the digest is leased waits for it."""
    waiting = {"run": [{"id": "d", "kind": "DIGEST"}, {"id": "t1", "kind": "TURN"}]}
    async with calling(waiting) as caller:
        runs = caller.stub.state.runs
        assert (await caller.next(kinds=KINDS)).json()["run"]["id"] == "t1"
        assert (await caller.next(kinds=KINDS)).status_code == 204
        await caller.post("end", ended())
        assert (await caller.next(kinds=KINDS)).json()["run"]["id"] == "d"
        runs.queue(RunTerms(id="t2", kind="TURN", subject="conversation:1", lease=seconds(60)))
        assert (await caller.next(kinds=KINDS)).status_code == 204
        assert (await caller.post("renew")).status_code == 200
        assert (await caller.post("end", ended())).json() == {"result": "ENDED", "reason": None}
        assert runs.claim("conversation:1", KINDS) is runs.get("t2")


async def test_digests_and_turns_share_a_cap() -> None:
    """While as many conversations as may be are at work, another one waits, whatever its kind; a review does not."""
    both = {"run": [{"kind": "DIGEST"}, {"kind": "TURN"}], "capacity": {"turns": 1}}
    async with calling(both) as caller:
        runs = caller.stub.state.runs
        for name, kind, subject in (("t", "TURN", "conversation:2"), ("r", "REVIEW", "review:1")):
            runs.queue(RunTerms(id=name, kind=kind, subject=subject, lease=seconds(60)))
        assert (await caller.next(kinds=KINDS)).json()["run"]["kind"] == "TURN"
        assert runs.claim("conversation:2", KINDS) is None
        assert runs.claim("review:1", ["REVIEW"]) is runs.get("r")
        await caller.post("end", ended())
        assert runs.claim("conversation:2", KINDS) is runs.get("t")
        assert (await caller.next(kinds=KINDS)).status_code == 204
        runs.end("t", 1, "COMPLETED")
        assert (await caller.next(kinds=KINDS)).json()["run"]["kind"] == "DIGEST"


async def test_two_calls_of_a_conversation_are_in_flight() -> None:
    """The third model call of an attempt is refused for the moment, before the provider."""
    stalls = [{"at": "model", "nth": nth, "what": "stall", "bytes": 1} for nth in (1, 2)]
    message = {"model": "scripted-model", "input": "hello"}
    async with calling(digest(*stalls)) as caller, anyio.create_task_group() as tasks:
        await caller.next(kinds=KINDS)
        for _ in range(2):
            tasks.start_soon(caller.model, "responses", message)
        await caller.stub.wait_for(lambda: sum(caller.stub.state.in_flight.values()) == 2)
        answer = await caller.model("responses", message)
        assert (answer.status_code, code_of(answer), answer.headers["retry-after"]) == (429, "calls_in_flight", "1")
        tasks.cancel_scope.cancel("all is known")


async def test_a_lease_of_a_conversation_is_a_minute() -> None:
    """A person waits for a turn, so a lost one is taken back soon."""
    for name in ("digest", "turn"):
        assert [run.lease_seconds for run in load_scenario(name).run] == [60.0] * len(load_scenario(name).run)


async def test_admission_that_is_withdrawn_before_the_work() -> None:
    """The context is refused, and so is each model call; a failed end is final and stores no answer."""
    async with calling(digest(withdraw("context"))) as caller:
        await caller.next(kinds=KINDS)
        for answer in (
            await caller.get("context"),
            await caller.get("context"),
            await caller.model("responses", {"model": "scripted-model", "input": "hello"}),
        ):
            assert (answer.status_code, code_of(answer)) == (403, "digest_not_admitted")
        assert (await caller.post("end", ended("FAILED", exit=77))).json()["result"] == "ENDED"
        run = caller.stub.state.runs.get("run-1")
        assert (run.state, run.outcome, run.attempt) == (State.ENDED, "FAILED", 0)


async def test_admission_that_is_withdrawn_midway() -> None:
    """Calls up to then are answered; the completion that comes all the same is refused."""
    message = {"model": "scripted-model", "input": "hello"}
    async with calling(digest(withdraw("model", 2))) as caller:
        await caller.next(kinds=KINDS)
        assert [(await caller.model("responses", message)).status_code for _ in range(3)] == [200, 403, 403]
        assert (await caller.post("end", ended())).json() == {"result": "REFUSED", "reason": "no longer wanted"}
        assert caller.stub.state.as_json()["ends"] == []


async def test_admission_that_is_withdrawn_at_the_end() -> None:
    """Nothing is stored and the run is over; a repeat reads that it had ended."""
    async with calling(digest(withdraw("end"))) as caller:
        await caller.next(kinds=KINDS)
        answers = [(await caller.post("end", ended())).json()["result"] for _ in range(2)]
        assert answers == ["REFUSED", "ALREADY_ENDED"]
        assert caller.stub.state.as_json()["ends"] == []
        assert caller.stub.state.runs.get("run-1").outcome == "REFUSED"
        assert (await caller.next(kinds=KINDS)).status_code == 204


async def test_a_digest_that_waits_unadmitted_is_not_offered() -> None:
    """One that was given back after admission was withdrawn ends at the next pull, which gets no run."""
    async with calling(digest(withdraw("renew"))) as caller:
        await caller.next(kinds=KINDS)
        await caller.post("renew")
        await caller.post("end", ended("INTERRUPTED"))
        assert (await caller.next(kinds=KINDS)).status_code == 204
        assert caller.stub.state.runs.get("run-1").outcome == "REFUSED"


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (None, "answer: text: must be a text that is not empty"),
        ({**TEXT, "text": " "}, "answer: text: must be a text that is not empty"),
        ({**TEXT, "text": "x" * 1201}, "answer: text: 1201 characters; at most 1200 are taken"),
        ({**TEXT, "factIds": ["feedback-99"]}, "answer: factIds: must be a list of captured facts"),
        ({**TEXT, "factIds": [["feedback-31"]]}, "answer: factIds: must be a list of captured facts"),
        ({"text": "Yes."}, "answer: factIds: must be a list of captured facts"),
        ({**TEXT, "note": ""}, "answer: note: is not known"),
    ],
)
async def test_an_answer_is_judged_again(answer: dict[str, Any] | None, detail: str) -> None:
    """A completion with an answer that its context does not allow ends nothing; an allowed one is shown after it."""
    async with calling(digest()) as caller:
        await caller.next(kinds=KINDS)
        refused = await caller.post("end", ended(answer=answer))
        assert (refused.status_code, code_of(refused), refused.json()["detail"]) == (422, "answer_invalid", detail)
        longest = {**TEXT, "text": "x" * 1200}
        assert (await caller.post("end", ended(answer=longest))).json()["result"] == "ENDED"
        assert [end["answer"] for end in caller.stub.state.as_json()["ends"]] == [longest]
        assert (await caller.post("end", ended(answer=None))).json()["result"] == "ALREADY_ENDED"


BRIEF = """\
# Task

The answer has at most {limit} characters.

# Captured facts

`f1` FEEDBACK 2026-01-05T09:30:00Z, 32 characters
| Name the error.

"odd id" PROFILE_CHANGE 2026-01-06T09:30:00Z
| Tests are steady.
"""


@pytest.mark.parametrize(
    ("limit", "text", "cited"),
    [
        (100, "Name the error. Tests are steady.", ["f1", "odd id"]),
        (20, "Name the error.", ["f1"]),
        (7, "Nothing", []),
    ],
)
async def test_the_rule_answer(limit: int, text: str, cited: list[str]) -> None:
    """It reads the first fact, answers within the bound with what it cites, and stops."""
    tools = [{"type": "function", "name": name} for name in ("fact", "answer")]
    said: list[dict[str, Any]] = [{"role": "user", "content": BRIEF.format(limit=limit)}]
    calls = []
    async with calling(digest(model={"turns": [{"rule": "answer"}]})) as caller:
        await caller.next(kinds=KINDS)
        for _ in range(3):
            message = {"model": "scripted-model", "input": said, "tools": tools}
            output = (await caller.model("responses", message)).json()["output"]
            calls += [(item["name"], item["arguments"]) for item in output if item["type"] == "function_call"]
            said = [*said, *output]
            said += [
                {"type": "function_call_output", "call_id": item["call_id"], "output": "done"}
                for item in output
                if item["type"] == "function_call"
            ]
    assert calls[0] == ("fact", '{"id": "f1"}')
    assert [name for name, _ in calls] == ["fact", "answer"]
    assert json.loads(calls[1][1]) == {"text": text, "factIds": cited}


def test_the_subject_of_a_conversation_may_be_named() -> None:
    """The default subject is of the run's kind, and a named one stays."""
    runs = parse_scenario({"run": [{"kind": "TURN"}, {"kind": "TURN", "subject": "conversation:9"}, {}]}).run
    assert [run.subject for run in runs] == ["conversation:1", "conversation:9", "review:1"]


class ConversationMachine(RuleBasedStateMachine):
    """Whatever is queued, claimed, lost and ended: one live writer of a conversation, and digests yield."""

    made = Bundle("made")

    def __init__(self) -> None:
        super().__init__()
        self.time = FakeTime()
        self.turns = 2
        self.runs = Runs(self.time, silent, turns=self.turns)
        self.count = 0

    @rule(target=made, kind=st.sampled_from(KINDS), subject=st.sampled_from(SUBJECTS))
    def queue(self, kind: str, subject: str) -> str:
        self.count += 1
        terms = RunTerms(id=f"r{self.count}", kind=kind, subject=subject, lease=seconds(10), deadline=seconds(25))
        return self.runs.queue(terms).terms.id

    @rule(subject=st.sampled_from(SUBJECTS))
    def claim(self, subject: str) -> None:
        run = self.runs.claim(subject, KINDS)
        if run is not None and run.terms.kind == "DIGEST":
            queued = [other for other in self.runs if other.state is State.QUEUED and other.terms.subject == subject]
            assert all(other.terms.kind == "DIGEST" for other in queued)

    @rule(name=made, what=st.sampled_from(["end", "renew", "requeue", "take away"]))
    def act(self, name: str, what: str) -> None:
        run = self.runs.get(name)
        held = run.state is State.LEASED
        try:
            match what:
                case "end":
                    self.runs.end(name, run.epoch, "COMPLETED")
                case "renew":
                    self.runs.renew(name, run.epoch)
                case "requeue":
                    self.runs.requeue(name, run.epoch, "FAILED", charged=True, after=seconds(3))
                case _:
                    self.runs.take_away(name)
        except ClaimNotHeld:
            # It was not held, or its time had passed without a look of the reaper.
            assert not held or (run.leased_until is not None and run.leased_until <= self.time.moment)

    @rule(passed=st.integers(1, 15))
    def wait(self, passed: int) -> None:
        self.time.advance(passed)

    @rule()
    def reap(self) -> None:
        self.runs.reap()

    @invariant()
    def one_live_writer(self) -> None:
        leased = [run.terms.subject for run in self.runs if run.state is State.LEASED]
        assert len(leased) == len(set(leased))
        assert len(leased) <= self.turns


TestConversationMachine = ConversationMachine.TestCase
TestConversationMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
