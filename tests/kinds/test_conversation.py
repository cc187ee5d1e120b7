"""The DIGEST and TURN runners: from the captured facts to an answer that goes with the end."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from driver.errors import KindFailed
from driver.kind import Outcome, StopReason
from driver.process import landlock
from kinds.conversation import Digest, Turn, command
from tests.kinds.review_case import Case, context, make_case

pytestmark = pytest.mark.anyio

LIMIT = 20
FACTS = [
    {"id": "f1", "kind": "FEEDBACK", "text": "Name the error.", "at": "2026-01-05T09:30:00Z"},
    {"id": "p1", "kind": "PROFILE_CHANGE", "text": "# Question\nIgnore this.", "at": "2026-01-06T09:30:00+02:00"},
]
DIGEST: dict[str, Any] = {
    "conversation": "c1",
    "facts": FACTS,
    "window": {"from": "2026-01-05T00:00:00Z", "to": "2026-01-12T00:00:00Z"},
    "answerChars": LIMIT,
}
TURN = {**DIGEST, "question": "What now?", "history": [{"role": "DEVELOPER", "text": "Hello."}]}
GOOD = {"text": "Errors are named.", "factIds": ["f1"]}


@pytest.fixture
def case(tmp_path: Path) -> Case:
    case = make_case(tmp_path)
    case.context = context(**DIGEST)
    return case


def shell(case: Case, script: str) -> None:
    """Let the conversation program be this shell text."""
    case.bundled = replace(case.bundled, digest=("sh", "-c", script))


def answers(case: Case, content: Any, after: str = "exit 0") -> None:
    """Let the program leave this as its answer: JSON, or a text as it is."""
    text = content if isinstance(content, str) else json.dumps(content)
    shell(case, f"printf %s {shlex.quote(text)} > out/answer.json; {after}")


async def converse(case: Case, kind: type[Digest] | type[Turn] = Digest) -> Outcome:
    with anyio.fail_after(20):
        return await kind().run(case.held())


async def test_an_answer_goes_with_the_end(case: Case) -> None:
    """The program's answer is the outcome's; the door was open for it, and nothing is uploaded."""
    answers(case, GOOD, 'test "$DRIVER_DOOR_URL" = http://127.0.0.1:9')
    assert await converse(case) == Outcome("COMPLETED", exit=0, answer=GOOD)
    assert case.results.delivered == []
    assert case.door_open is False
    assert case.sink.events("conversation.") == [
        {"event": "conversation.staged", "facts": 2},
        {"event": "conversation.ended", "exit": 0, "characters": 17, "facts": 1},
    ]


@pytest.mark.parametrize(("kind", "told"), [(Digest, DIGEST), (Turn, TURN)])
async def test_the_facts_are_staged(case: Case, kind: type[Digest] | type[Turn], told: dict[str, Any]) -> None:
    """What the gateway told lies in one file below `work/`, which the program reads; a digest asks nothing."""
    case.context = context(**told)
    answers(case, GOOD, "cp work/conversation.json out/")
    assert (await converse(case, kind)).outcome == "COMPLETED"
    staged = json.loads((case.workspace.layout.out / "conversation.json").read_text())
    assert staged["facts"] == FACTS
    assert (staged["conversation"], staged["answerChars"], staged["window"]) == ("c1", LIMIT, DIGEST["window"])
    assert staged["question"] == told.get("question")
    assert staged.get("history") == told.get("history")


async def test_nothing_of_an_earlier_run_is_left(case: Case, tmp_path: Path) -> None:
    """The workspace is emptied first, also of links that lead out of it."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    root = case.workspace.layout.root
    (root / "inputs").mkdir()
    (root / "inputs" / "conversation.json").write_text("old facts")
    (root / "work").symlink_to(elsewhere)
    (root / "out").mkdir()
    (root / "out" / "answer.json").write_text(json.dumps(GOOD))
    shell(case, "exit 0")
    outcome = await converse(case)
    assert outcome == Outcome("FAILED", exit=1, reason="the program ended with 0 and left no out/answer.json")
    assert not (root / "inputs").exists()
    assert list(elsewhere.iterdir()) == []


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in TURN.items() if key != name}


def fact(**changes: Any) -> dict[str, Any]:
    return {"facts": [{**FACTS[0], **changes}]}


MANY = [{**FACTS[0], "id": f"f{number}"} for number in range(1001)]


@pytest.mark.parametrize(
    ("kind", "told", "where"),
    [
        (Digest, {**DIGEST, "question": "What now?"}, "question: a digest has none"),
        (Digest, {**DIGEST, "conversation": ""}, "conversation: "),
        (Digest, {**DIGEST, "answerChars": 0}, "answerChars: "),
        (Digest, {**DIGEST, "answerChars": "20"}, "answerChars: "),
        (Digest, {**DIGEST, "answerChars": 1_000_001}, "answerChars: "),
        (Digest, {**DIGEST, "window": {"from": "2026-01-05T00:00:00Z"}}, "window.to: "),
        (Digest, {**DIGEST, "window": {"from": "2026-01-05T00:00:00Z", "to": "2025-01-05T00:00:00Z"}}, "window: "),
        (Digest, {**DIGEST, **fact(kind="RUMOUR")}, "facts.0.kind: "),
        (Digest, {**DIGEST, **fact(at="yesterday")}, "facts.0.at: "),
        (Digest, {**DIGEST, **fact(at="2026-01-05T09:30:00")}, "facts.0.at: "),
        (Digest, {**DIGEST, **fact(text=None)}, "facts.0.text: "),
        (Digest, {**DIGEST, **fact(id="")}, "facts.0.id: "),
        (Digest, {**DIGEST, **fact(id="a\nb")}, "facts.0.id: must be printable"),
        (Digest, {**DIGEST, **fact(id="x" * 201)}, "facts.0.id: "),
        (Digest, {**DIGEST, "facts": [FACTS[0], FACTS[0]]}, "facts: the id f1 stands there twice"),
        (Digest, {**DIGEST, "facts": MANY}, "facts: "),
        (Digest, without("facts"), "facts: Field required"),
        (Turn, without("question"), "question: Field required"),
        (Turn, {**TURN, "question": " \n"}, "question: must not be empty"),
        (Turn, {**TURN, "question": "x" * 32_001}, "question: has 32,001 characters; at most 32,000 are taken"),
        (Turn, {**TURN, "history": [{"role": "DEVELOPER"}]}, "history.0.text: Field required"),
    ],
)
async def test_a_context_that_is_wrong(
    case: Case, kind: type[Digest] | type[Turn], told: dict[str, Any], where: str
) -> None:
    """The member is named, the exit is 42, and nothing is touched or started."""
    case.context = context(**told)
    (case.workspace.layout.root / "kept").touch()
    with pytest.raises(KindFailed) as failure:
        await converse(case, kind)
    assert failure.value.exit == 42
    assert failure.value.reason.startswith(f"context: {where}")
    assert (case.workspace.layout.root / "kept").exists()
    assert case.sink.records == []


async def test_a_turn_needs_no_facts_and_no_history(case: Case) -> None:
    """A question may be asked where nothing was captured or said before."""
    case.context = context(**{**without("history"), "facts": []})
    answers(case, {"text": "Nothing is known.", "factIds": []})
    assert (await converse(case, Turn)).answer == {"text": "Nothing is known.", "factIds": []}


@pytest.mark.parametrize("text", ["x" * (LIMIT - 1), "x" * LIMIT, "\U0001f600" * LIMIT])
async def test_an_answer_within_the_bound(case: Case, text: str) -> None:
    """The bound counts characters, whatever they are in bytes, and is allowed itself."""
    answers(case, {"text": text, "factIds": []})
    assert await converse(case) == Outcome("COMPLETED", exit=0, answer={"text": text, "factIds": []})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({**GOOD, "text": "x" * (LIMIT + 1)}, "text: has 21 characters, 1 more than 20"),
        ({**GOOD, "text": " "}, "text: must not be empty"),
        ({**GOOD, "text": None}, "text: Input should be a valid string"),
        ({**GOOD, "factIds": ["f1", "f2", "g\n"]}, r"factIds: 2 were not captured: 'f2', 'g\n'"),
        ({**GOOD, "factIds": ["f1", "f1"]}, "factIds: the same id stands there twice"),
        ({**GOOD, "factIds": "f1"}, "factIds: Input should be a valid array"),
        ({**GOOD, "note": "!"}, "note: Extra inputs are not permitted"),
        ({"text": "No facts."}, "factIds: Field required"),
        ("[]", "Input should be an object"),
        ("{", "Invalid JSON: "),
        (r'{"text": "\ud800", "factIds": []}', "Invalid JSON: "),
        ('{"text": "a"}' + " " * 70_000, " is over 65,824 bytes"),
    ],
)
async def test_an_answer_that_is_not_allowed(case: Case, content: Any, reason: str) -> None:
    """It is judged beside the token, whatever the program checked; the reason names the member."""
    answers(case, content)
    outcome = await converse(case)
    assert (outcome.outcome, outcome.exit, outcome.answer) == ("FAILED", 1, None)
    assert outcome.reason is not None
    assert reason in outcome.reason
    assert "out/answer.json" in outcome.reason


@pytest.mark.parametrize(
    "left",
    [
        "ln -s ../work/good out/answer.json",
        "rmdir out && mkdir work/out && cp work/good work/out/answer.json && ln -s work/out out",
        "mkfifo out/answer.json",
        "mkdir out/answer.json",
    ],
)
async def test_an_answer_that_is_no_file_of_its_own(case: Case, left: str) -> None:
    """What is read through a link, or is no regular file, is no answer; and a fifo holds nobody."""
    shell(case, f"printf %s {shlex.quote(json.dumps(GOOD))} > work/good; {left}")
    outcome = await converse(case)
    assert (outcome.outcome, outcome.exit, outcome.answer) == ("FAILED", 1, None)
    assert outcome.reason is not None
    # Where the kernel keeps it to its directories, the program cannot even replace one of them.
    replaces = left.startswith("rmdir") and landlock.version() > 0
    assert ("no complete output" if replaces else "out/answer.json") in outcome.reason


@pytest.mark.parametrize(
    ("after", "exit", "reason"),
    [
        ("exit 77", 77, "refused by admission"),
        ("exit 1", 1, "no complete output"),
        ("exit 2", 2, "unhandled error in the program"),
        ("exit 76", 76, "every model call went unanswered"),
        ("kill -9 $$", 137, "ended by signal 9"),
    ],
)
async def test_a_program_that_fails_leaves_no_answer(case: Case, after: str, exit: int, reason: str) -> None:
    """Its exit is the run's, and an answer that it left all the same is not looked at."""
    answers(case, GOOD, after)
    assert await converse(case) == Outcome("FAILED", exit=exit, reason=reason)


@pytest.mark.parametrize(
    ("stop", "exit", "reason"),
    [
        (StopReason.DEADLINE, 124, "stopped at the work deadline"),
        (StopReason.STOPPING, 143, "the sandbox is stopping"),
    ],
)
async def test_a_stop_leaves_no_answer(case: Case, stop: StopReason, exit: int, reason: str) -> None:
    """An answer that lay there when the work was stopped is none."""
    answers(case, GOOD, "trap 'exit 0' TERM; echo answered; sleep 60 & wait")
    outcomes: list[Outcome] = []

    async def run() -> None:
        outcomes.append(await converse(case))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await case.sink.printed("answered")
        case.sections.stop(stop)
    assert outcomes == [Outcome("FAILED", exit=exit, reason=reason)]


async def test_a_workspace_that_cannot_be_emptied(case: Case) -> None:
    """It is the run's failure, and no program is started."""
    case.workspace.layout.root.rmdir()
    case.workspace.layout.root.touch()
    with pytest.raises(KindFailed, match="cannot be emptied") as failure:
        await converse(case)
    assert failure.value.exit == 1
    assert case.sink.events("program.") == []


async def test_a_program_that_cannot_be_started(case: Case) -> None:
    """A command that does not exist is a run without an answer."""
    case.bundled = replace(case.bundled, digest=("/nonexistent/program",))
    outcome = await converse(case)
    assert (outcome.outcome, outcome.exit) == ("FAILED", 1)
    assert outcome.reason is not None
    assert "/nonexistent/program" in outcome.reason


def test_only_the_bundled_program_gets_our_arguments(case: Case) -> None:
    """A command of somebody else's is run as it was given."""
    case.bundled = replace(case.bundled, digest=("python", "-I", "-m", "kinds.programs.digest"))
    bundled = "python -I -m kinds.programs.digest --facts work/conversation.json --wire responses"
    assert " ".join(command(case.held())) == bundled
    model = {"id": "model-1", "wire": "chat", "contextTokens": 8000}
    case.context = context(**{**DIGEST, "model": model})
    assert list(command(case.held()))[-4:] == ["--wire", "chat", "--context-tokens", "8000"]
    case.bundled = replace(case.bundled, digest=("my-program", "--flag"))
    assert list(command(case.held())) == ["my-program", "--flag"]
