"""DIGEST and TURN from end to end: the real driver, the bundled program, and the stub as the gateway."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from driver.stub.scenario import Scenario, load_scenario
from driver.stub.server import Stub, running_stub
from tests.e2e.driving import Driver, driving, processes_below, scenario, shell, stop_signal

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

LIMIT = 30
FACTS = [
    {"id": "f1", "kind": "FEEDBACK", "text": "Name the error.", "at": "2026-01-05T09:30:00Z"},
    {"id": "f2", "kind": "FEEDBACK", "text": "Tests came along.", "at": "2026-01-06T09:30:00Z"},
]
GOOD = {"text": "Name the error.", "factIds": ["f1"]}

# What a run without a fault logs, in order, between the pull and the end.
GOOD_RUN = [
    "run.pulled",
    "workspace.emptied",
    "conversation.staged",
    "door.opened",
    "program.started",
    "program.ended",
    "door.closed",
    "conversation.ended",
    "run.ended",
]
BESIDE = ("model.call.accepted", "model.call.released", "program.output", "token.exposed", "gate.passed")


def digest(**run: Any) -> dict[str, Any]:
    """A run of a digest over two facts."""
    context = {"facts": FACTS, "answerChars": LIMIT, **run.pop("context", {})}
    return {"kind": "DIGEST", "attempts": 1, "context": context, **run}


def says(*answers: dict[str, Any], rule: bool = False) -> dict[str, Any]:
    """A model that gives these answers, one in each turn."""
    turns: list[dict[str, Any]] = [{"calls": [{"name": "answer", "arguments": answer}]} for answer in answers]
    return {"turns": [*turns, {"rule": "answer"}] if rule else turns}


def leaves(content: Any, exit: int = 0) -> str:
    """A DRIVER_PROGRAM_DIGEST that leaves this as its answer."""
    return shell(f"printf %s {shlex.quote(json.dumps(content))} > out/answer.json; exit {exit}")


async def play(played: Scenario, workspace: Path, **environment: str) -> tuple[Stub, Driver]:
    """Let a driver work until every run has ended and it has said so; then stop it."""
    async with running_stub(played) as stub, driving(stub, workspace, **environment) as driver:
        await stub.wait_ended()
        while len(driver.named("run.ended")) < len(played.run):
            await driver.changed()
        stop_signal(driver)
        assert await driver.exit() == 0
    assert processes_below(workspace) == []
    assert stub.state.journal.named("request.failed") == []
    return stub, driver


def stored(stub: Stub) -> list[dict[str, Any] | None]:
    """The answers that the gateway keeps, as people see them."""
    return [end["answer"] for end in stub.state.as_json()["ends"]]


def end_of(driver: Driver, number: int = 0) -> tuple[Any, Any, Any, Any]:
    """What the driver says of an end: outcome, exit, reason, and what the gateway said."""
    line = driver.named("run.ended")[number]
    return line["outcome"], line.get("exit"), line.get("reason"), line["answer"]


@pytest.mark.parametrize("wire", ["responses", "chat", "messages"])
async def test_a_digest(tmp_path: Path, wire: str) -> None:
    """On each wire a fact is read, and the answer goes with the end; nothing is downloaded or uploaded."""
    model = {"wire": wire, "turns": [{"rule": "answer"}]}
    stub, driver = await play(scenario(run=digest(), model=model), tmp_path / "workspace")
    assert stored(stub) == [GOOD]
    assert end_of(driver) == ("COMPLETED", 0, None, "ENDED")
    assert stub.state.runs.get("run-1").outcome == "COMPLETED"
    assert [name for name in driver.names(*BESIDE) if not name.startswith("driver.")] == GOOD_RUN
    calls = stub.state.as_json()["calls"]
    assert {name: calls.get(name, 0) for name in ("context", "model", "runtime", "workspace", "result")} == {
        "context": 1,
        "model": 2,
        "runtime": 0,
        "workspace": 0,
        "result": 0,
    }


@pytest.mark.parametrize("seen", ["What should I look at next", "How did my last week go?", "`feedback-31` FEEDBACK"])
async def test_a_turn(tmp_path: Path, seen: str) -> None:
    """The model is given the question, what was said before, and the facts."""
    answer = {"text": f"I have read: {seen}", "factIds": []}
    session = [{"match": seen, "turns": says(answer)["turns"]}]
    played = scenario(run={"kind": "TURN", "attempts": 1}, model={"turns": [{"text": "Lost."}], "session": session})
    stub, driver = await play(played, tmp_path / "workspace")
    assert stored(stub) == [answer]
    assert end_of(driver) == ("COMPLETED", 0, None, "ENDED")


async def test_a_digest_after_the_question_that_it_yields_to(tmp_path: Path) -> None:
    """In the bundled scenario the question is answered first, then the digest, never both at a time."""
    stub, driver = await play(load_scenario("turn"), tmp_path / "workspace")
    assert [line["run.id"] for line in driver.named("run.ended")] == ["turn-1", "digest-1"]
    moves = [
        (entry.event, entry.fields["run"])
        for entry in stub.state.journal.entries
        if entry.event in ("run.leased", "run.ended")
    ]
    assert moves == [(event, run) for run in ("turn-1", "digest-1") for event in ("run.leased", "run.ended")]
    assert len(stored(stub)) == 2


REFUSED = {
    "context": ("FAILED", 77, "context: refused with 403 (digest_not_admitted)", "ENDED"),
    "model": ("FAILED", 77, "refused by admission", "ENDED"),
    "end": ("COMPLETED", 0, None, "REFUSED"),
}


@pytest.mark.parametrize("at", ["context", "model", "end"])
async def test_admission_is_refused(tmp_path: Path, at: str) -> None:
    """Before the work, in the middle and at the end: no answer is stored, the run is over, the driver goes on."""
    nth = 2 if at == "model" else 1
    fault = [{"at": at, "nth": nth, "what": "withdraw"}]
    played = scenario(run=[digest(), digest()], model={"turns": [{"rule": "answer"}]}, fault=fault)
    stub, driver = await play(played, tmp_path / "workspace")
    assert end_of(driver, 0) == REFUSED[at]
    assert end_of(driver, 1) == ("COMPLETED", 0, None, "ENDED")
    first, second = stub.state.runs
    assert (first.epoch, first.attempt, second.outcome) == (1, 0, "COMPLETED")
    assert stored(stub) == ([GOOD] if at == "end" else [None, GOOD])
    refused = [entry for entry in stub.state.journal.named("request.refused") if entry.fields["status"] == 403]
    assert len(refused) == (0 if at == "end" else 1)


async def test_nothing_of_the_first_run_is_there_for_the_second(tmp_path: Path) -> None:
    """Two digests in one sandbox: no file of the first is left, whatever its program hid where it may write."""
    first = digest(context={"facts": [{**FACTS[0], "text": "SECRET OF THE FIRST"}]})
    hides = 'cp work/conversation.json "$HOME/a" && cp work/conversation.json "$TMPDIR/b" && mkdir -p .sessions/c'
    hides += " && cp work/conversation.json .sessions/c/d && cp work/conversation.json out/e"
    looks = "if grep -rqs 'SECRET OF' .; then found=yes; else found=no; fi"
    answers = 'printf \'{"text": "%s %s", "factIds": []}\' "$DRIVER_RUN_ID" "$found" > out/answer.json'
    program = shell(f"{looks}; [ $DRIVER_RUN_ID = run-2 ] || {{ {hides}; }}; {answers}")
    stub, _ = await play(scenario(run=[first, digest()]), tmp_path / "workspace", DRIVER_PROGRAM_DIGEST=program)
    assert [answer and answer["text"] for answer in stored(stub)] == ["run-1 yes", "run-2 no"]


async def test_the_bound_of_the_answer(tmp_path: Path) -> None:
    """One character too many is refused and told to the model, whose next answer, at the bound, is stored."""
    texts = ["x" * (LIMIT + 1), "\u00fc" * LIMIT]
    model = says(*({"text": text, "factIds": []} for text in texts))
    stub, driver = await play(scenario(run=digest(), model=model), tmp_path / "workspace")
    assert stored(stub) == [{"text": texts[1], "factIds": []}]
    printed = [line["text"] for line in driver.named("program.output")]
    assert "answer refused: `text` has 31 characters, 1 more than the 30 that are allowed" in printed


async def test_only_captured_facts_are_cited(tmp_path: Path) -> None:
    """What was not captured is refused by name, and the next answer counts."""
    model = says({**GOOD, "factIds": ["f1", "f9"]}, GOOD)
    stub, driver = await play(scenario(run=digest(), model=model), tmp_path / "workspace")
    assert stored(stub) == [GOOD]
    printed = [line["text"] for line in driver.named("program.output")]
    assert 'answer refused: `factIds` names what was not captured: "f9"' in printed


@pytest.mark.parametrize(
    ("length", "ids", "reason"),
    [
        (LIMIT - 1, ["f2"], None),
        (LIMIT, ["f2"], None),
        (LIMIT + 1, ["f2"], "out/answer.json: text: has 31 characters, 1 more than 30"),
        (LIMIT, ["f9"], "out/answer.json: factIds: 1 were not captured: 'f9'"),
    ],
)
async def test_any_program_may_answer(tmp_path: Path, length: int, ids: list[str], reason: str | None) -> None:
    """Another program's answer is judged by the same rules, beside the token."""
    answer = {"text": "x" * length, "factIds": ids}
    workspace = tmp_path / "workspace"
    stub, driver = await play(scenario(run=digest()), workspace, DRIVER_PROGRAM_DIGEST=leaves(answer))
    if reason is None:
        assert (stored(stub), end_of(driver)) == ([answer], ("COMPLETED", 0, None, "ENDED"))
    else:
        assert (stored(stub), end_of(driver)) == ([None], ("FAILED", 1, reason, "ENDED"))


async def test_a_program_that_says_77_leaves_no_answer(tmp_path: Path) -> None:
    """Whatever it left, a program that ends as refused by admission has no answer."""
    workspace = tmp_path / "workspace"
    stub, driver = await play(scenario(run=digest()), workspace, DRIVER_PROGRAM_DIGEST=leaves(GOOD, exit=77))
    assert (stored(stub), end_of(driver)) == ([None], ("FAILED", 77, "refused by admission", "ENDED"))


async def test_a_digest_with_a_question_is_refused(tmp_path: Path) -> None:
    """The context's fault is named with exit 42, and nothing is run."""
    played = scenario(run=digest(context={"question": "What now?"}))
    stub, driver = await play(played, tmp_path / "workspace")
    assert (stored(stub), end_of(driver)) == ([None], ("FAILED", 42, "context: question: a digest has none", "ENDED"))
    assert driver.named("program.started") == []


async def test_the_work_deadline(tmp_path: Path) -> None:
    """A conversation that is not done in its time ends without an answer."""
    workspace = tmp_path / "workspace"
    program = shell("printf '{}' > out/answer.json; sleep 60 & wait")
    stub, driver = await play(scenario(run=digest(work_seconds=1)), workspace, DRIVER_PROGRAM_DIGEST=program)
    assert (stored(stub), end_of(driver)) == ([None], ("FAILED", 124, "stopped at the work deadline", "ENDED"))


async def test_a_stop_of_the_driver(tmp_path: Path) -> None:
    """The run is given back free of charge, and an answer that lay there is not told."""
    program = shell('printf \'%s\' \'{"text": "x", "factIds": []}\' > out/answer.json; echo ready; sleep 60 & wait')
    async with (
        running_stub(scenario(run=digest())) as stub,
        driving(stub, tmp_path / "workspace", DRIVER_PROGRAM_DIGEST=program) as driver,
    ):
        await driver.wait_event("program.output", text="ready")
        stop_signal(driver)
        assert await driver.exit() == 0
    assert (stored(stub), end_of(driver)) == ([None], ("INTERRUPTED", 143, "the sandbox is stopping", "ENDED"))
    assert stub.state.runs.get("run-1").attempt == 0


async def test_a_claim_that_is_lost(tmp_path: Path) -> None:
    """Nothing is written for it any more."""
    fault = [{"at": "model", "nth": 2, "what": "take_away"}]
    played = scenario(run=digest(), model={"turns": [{"rule": "answer"}]}, fault=fault)
    async with running_stub(played) as stub, driving(stub, tmp_path / "workspace") as driver:
        await stub.wait_ended()
        await driver.wait_event("claim.lost")
        stop_signal(driver)
        assert await driver.exit() == 0
    assert (stored(stub), driver.named("run.ended")) == ([], [])
    assert "end" not in stub.state.as_json()["calls"]
