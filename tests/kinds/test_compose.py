"""The REVIEW_COMPOSE runner: from a held run to a delivered feedback and an outcome."""

import json
import sys
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import anyio
import pytest

from driver.errors import KindFailed, TransferFailed
from driver.gateway.wire import Context
from driver.kind import Outcome, StopReason
from kinds.compose import Compose, command
from tests.kinds.review_case import Case, bundled, make_case, small_change

pytestmark = pytest.mark.anyio

OBSERVATION: dict[str, Any] = {
    "id": "o-1",
    "practiceSlug": "naming",
    "outcome": "NOT_MET",
    "severity": "MINOR",
    "summary": "Shouts.",
    "citations": [{"path": "repos/reviewed/a.txt", "startLine": 2, "endLine": 2, "quote": "TWO"}],
}
DEFAULTS = {
    "inline": {"maxUnits": 30, "maxCharacters": 2000},
    "summary": {"maxUnits": 30, "maxCharacters": 4000},
}


def composition(**more: Any) -> Context:
    """A context as the gateway sends it."""
    return Context.model_validate(
        {
            "kind": "REVIEW_COMPOSE",
            "model": {"id": "model-1", "wire": "responses"},
            "workSeconds": 600,
            "observations": [OBSERVATION],
            "digest": "sha-256=:x:",
            **more,
        }
    )


@pytest.fixture
def case(tmp_path: Path) -> Case:
    case = make_case(tmp_path)
    case.filling.append(small_change)
    case.context = composition()
    return case


def program(case: Case, text: str) -> None:
    """Let the composing program be this Python text."""
    case.bundled = replace(bundled(()), compose=(sys.executable, "-c", text))


GOOD = "open('out/feedback.json', 'w').write('{}')"


async def compose(case: Case) -> Outcome:
    with anyio.fail_after(20):
        return await Compose().run(case.held())


async def test_a_good_composition(case: Case) -> None:
    """Request, view and program, in this order, with the door open; the outcome is a completion."""
    text = f"""
import json, os
assert json.load(open('inputs/composition.json')) == {{
    'schemaVersion': 1, 'observations': [{OBSERVATION!r}], 'digest': 'sha-256=:x:', 'channels': {DEFAULTS!r},
    'history': []}}
assert json.load(open('work/change/files.json'))[0]['path'] == 'a.txt'
assert os.environ['DRIVER_DOOR_URL'] == 'http://127.0.0.1:9'
{GOOD}
"""
    program(case, text)
    assert await compose(case) == Outcome("COMPLETED", exit=0)
    assert case.results.delivered == [(0, ["feedback.json"])]
    assert case.door_open is False
    events = [record for record in case.sink.events("") if not record["event"].startswith("program.")]
    assert events == [
        {"event": "compose.prepared", "observations": 1, "job": "job-1", "reused": False},
        {"event": "change.derived", "files": 1, "added": 1, "deleted": 1},
        {"event": "compose.composed", "exit": 0},
    ]


async def test_the_workspace_of_the_review_is_used_again(case: Case) -> None:
    """Nothing is downloaded where the driver still has the workspace."""
    await case.workspace.prepare()
    case.workspace.stands = True
    case.filling.append(lambda root: pytest.fail("it was downloaded again"))
    program(case, GOOD)
    assert (await compose(case)).outcome == "COMPLETED"
    assert case.sink.events("compose.prepared")[0]["reused"] is True


async def test_what_the_gateway_says_is_passed_on(case: Case) -> None:
    """Channels and history reach the program as they are; a channel that is not named has its bounds."""
    inline = {"maxUnits": 1, "maxCharacters": 10}
    case.context = composition(channels={"inline": inline}, history=[{"anything": [1]}], observations=[])
    program(case, GOOD)
    assert (await compose(case)).outcome == "COMPLETED"
    request = json.loads((case.workspace.layout.root / "inputs" / "composition.json").read_text())
    assert request["channels"] == {**DEFAULTS, "inline": inline}
    assert (request["history"], request["observations"]) == ([{"anything": [1]}], [])


@pytest.mark.parametrize(
    ("text", "exit", "reason"),
    [
        ("raise SystemExit(1)", 1, "no complete output"),
        ("raise SystemExit(76)", 76, "every model call went unanswered"),
        ("pass", 1, "the program ended with 0 and left no out/feedback.json"),
    ],
)
async def test_a_program_that_fails(case: Case, text: str, exit: int, reason: str) -> None:
    """Its exit is the run's, what it wrote is delivered all the same, and the reason is told."""
    program(case, f"open('out/usage.json', 'w').write('{{}}')\n{text}")
    assert await compose(case) == Outcome("FAILED", exit=exit, reason=reason)
    assert case.results.delivered == [(exit, ["usage.json"])]


async def test_a_stop_in_the_middle(case: Case) -> None:
    """What `out/` holds is delivered with the stop's exit."""
    program(case, f"{GOOD}\nimport signal; print('composing', flush=True); signal.pause()")
    outcomes: list[Outcome] = []

    async def run() -> None:
        outcomes.append(await compose(case))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await case.sink.printed("composing")
        case.sections.stop(StopReason.DEADLINE)
    assert outcomes == [Outcome("FAILED", exit=124, reason="stopped at the work deadline")]
    assert case.results.delivered == [(124, ["feedback.json"])]


async def test_a_workspace_that_cannot_be_had(case: Case) -> None:
    """Exit 1 with the reason; nothing is delivered, since there is no `out/`."""

    async def prepare() -> None:
        raise TransferFailed("too short")

    case.preparing = prepare
    with pytest.raises(KindFailed, match="too short") as failure:
        await compose(case)
    assert (failure.value.exit, case.results.delivered) == (1, [])


async def test_a_request_that_cannot_be_staged(case: Case) -> None:
    """A link on its way is not followed: the run fails, and no program is started."""

    def link(root: Path) -> None:
        (root / "elsewhere").mkdir()
        (root / "inputs").symlink_to("elsewhere")

    case.filling.append(link)
    program(case, "open('work/started', 'w')")
    outcome = await compose(case)
    assert (outcome.outcome, outcome.exit) == ("FAILED", 2)
    assert outcome.reason is not None
    assert outcome.reason.startswith("the composition request cannot be put at inputs/composition.json (")
    assert case.results.delivered == [(2, [])]
    assert list((case.workspace.layout.root / "elsewhere").iterdir()) == []
    assert not (case.workspace.layout.work / "started").exists()


def observation(**changes: Any) -> dict[str, Any]:
    return {**OBSERVATION, **changes}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"observations": None}, "observations"),
        ({"observations": {}}, "observations"),
        ({"observations": [5]}, "observations.0"),
        ({"observations": [observation(id="a b")]}, "observations.0.id"),
        ({"observations": [observation(id=None)]}, "observations.0.id"),
        ({"observations": [observation(outcome="GOOD")]}, "observations.0.outcome"),
        ({"observations": [observation(severity="AWFUL")]}, "observations.0.severity"),
        ({"observations": [observation(citations=[{"path": "x"}])]}, "observations.0.citations.0.startLine"),
        ({"observations": [OBSERVATION, OBSERVATION]}, "observations.1.id: another observation has this id"),
        ({"observations": [OBSERVATION] * 1001}, "observations"),
        ({"digest": 7}, "digest"),
        ({"digest": ""}, "digest"),
        ({"channels": []}, "channels"),
        ({"channels": {"inline": {"maxUnits": -1, "maxCharacters": 10}}}, "channels.inline.maxUnits"),
        ({"channels": {"summary": {"maxUnits": 1}}}, "channels.summary.maxCharacters"),
        ({"channels": {"summary": {"maxUnits": 1, "maxCharacters": "9"}}}, "channels.summary.maxCharacters"),
        ({"history": "none"}, "history"),
        ({"task": ""}, "task"),
    ],
)
async def test_a_context_that_is_wrong(case: Case, wrong: dict[str, Any], field: str) -> None:
    """Exit 42, the field is named, and nothing is downloaded."""
    case.context = composition(**wrong)
    with pytest.raises(KindFailed, match=rf"^context: {field}") as failure:
        await compose(case)
    assert failure.value.exit == 42
    assert list(case.workspace.layout.root.iterdir()) == []


async def test_a_context_that_lacks_what_it_needs(case: Case) -> None:
    """A field that is missing is named as well."""
    case.context = Context.model_validate(
        {"kind": "REVIEW_COMPOSE", "model": {"id": "m", "wire": "chat"}, "workSeconds": 6}
    )
    with pytest.raises(KindFailed, match=r"^context: observations: Field required"):
        await compose(case)


def test_only_the_bundled_program_gets_our_arguments(case: Case) -> None:
    """A command of somebody else's is run as it was given."""
    case.bundled = replace(bundled(()), compose=("python", "-I", "-m", "kinds.programs.compose"))
    assert " ".join(command(case.held(), "task.json")) == (
        "python -I -m kinds.programs.compose --task task.json --wire responses"
    )
    case.context = composition(model={"id": "m", "wire": "chat", "contextTokens": 9000})
    assert list(command(case.held(), "task.json"))[-4:] == ["--wire", "chat", "--context-tokens", "9000"]
    case.bundled = replace(bundled(()), compose=("my-program", "--flag"))
    assert list(command(case.held(), "task.json")) == ["my-program", "--flag"]


def test_it_is_installed() -> None:
    """The driver finds the runner by the kind's name."""
    [point] = entry_points(group="driver.kinds", name="REVIEW_COMPOSE")
    assert point.load() is Compose
