"""The measuring program as a real process, against a door with a scripted provider."""

import json
import signal
import subprocess
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from kinds.programs.admission import admit
from kinds.programs.errors import CallUnanswered
from kinds.programs.exchange import Door
from kinds.programs.model import Waits
from tests.programs.fake_door import (
    KEY,
    MODEL,
    Refuse,
    Say,
    Seen,
    command,
    fake_door,
    make_workspace,
    measure,
    met,
    report,
    report_all,
    surroundings,
)

pytestmark = pytest.mark.anyio

PRACTICES = {"naming": "style", "errors": "style", "tests": "quality"}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return make_workspace(tmp_path, PRACTICES)


@pytest.mark.parametrize("wire", ["responses", "chat", "messages"])
async def test_measures_on_each_wire(workspace: Path, wire: str) -> None:
    """On each wire: parallel tool calls are answered, observations recorded and admitted, the files complete."""

    def script(seen: Seen) -> Say:
        if seen.turn == 0:
            look = ("read", {"path": "repos/reviewed/src/hello.py"}), ("grep", {"pattern": "hel+o", "path": "repos"})
            return Say("Looking – först.", calls=look)
        assert "[L2]     return 'hello ' + name" in seen.text
        assert "repos/reviewed/src/hello.py:1: def hello(name):" in seen.text
        return Say(calls=(report(*(met(slug) for slug in seen.practices)),))

    async with fake_door(script) as door:
        ended = await measure(workspace, door, wire)
    assert (ended.exit, ended.errors) == (0, "")
    result = ended.file("result.json")
    assert [one["practiceSlug"] for one in result["observations"]] == ["naming", "errors", "tests"]
    assert result["coverage"] == [{"practiceSlug": slug, "state": "RECORDED"} for slug in PRACTICES]
    assert result["admission"]["digest"] == "sha-256=:x:"
    assert len(result["admission"]["admitted"]) == 3
    assert door.posted == [{"observations": result["observations"]}]
    usage = ended.file("usage.json")["models"][MODEL]
    assert (usage["calls"], usage["answered"], usage["retries"]) == (4, 4, 0)
    assert (usage["inputTokens"], usage["outputTokens"], usage["cachedTokens"]) == (400, 40, 160)
    assert usage["reasoningTokens"] == (0 if wire == "messages" else 12)
    debug = ended.file("runner-debug.json")
    assert sorted(session["name"] for session in debug["sessions"]) == ["quality", "style"]
    assert {session["ended"] for session in debug["sessions"]} == {"done"}
    assert debug["heap"]["usedBytes"] == 0
    assert sorted(path.name for path in ended.out.iterdir()) == ["result.json", "runner-debug.json", "usage.json"]


async def test_tells_the_key_the_model_and_the_brief(workspace: Path) -> None:
    """A call carries the door key, the run's model, and a brief with one section for each practice."""
    async with fake_door(report_all) as door:
        await measure(workspace, door)
    first = next(seen for seen in door.calls if "naming" in seen.practices)
    assert first.headers["authorization"] == f"Bearer {KEY}"
    assert first.body["model"] == MODEL
    assert first.practices == ["naming", "errors"]
    text = first.messages[0]["content"][0]["text"]
    assert "## Practice naming\n\n| Title: Title of naming\n| \n| Criteria of naming.\n\n## Practice errors\n" in text
    assert "| [L1] +def hello(name):" in text
    assert '| {"title": "Add a greeting"}' in text
    assert '| {"note": "look at hello.py"}' in text


async def test_prints_what_happens(workspace: Path) -> None:
    """A person can follow sessions, calls, tools, observations, admission and the end."""
    async with fake_door(report_all) as door:
        ended = await measure(workspace, door)
    for line in (
        "[style] session started: naming, errors",
        "[style] recorded naming: MET",
        "[style] session ended: done",
        "posting 3 observations for admission",
        "admitted 3 observations, refused 0",
        "measuring ended with 0: complete",
    ):
        assert line in ended.output.splitlines()


async def test_tries_again_after_429_and_a_cut_stream(workspace: Path) -> None:
    """A 429 and streams that break off or end early cost tries, not the session."""
    failures: list[Say | Refuse] = [Refuse(429), Say("x", cut=True), Say("x", end=True), Refuse(503)]

    def script(seen: Seen) -> Say | Refuse:
        failure: Say | Refuse | None = failures.pop() if failures else None
        return failure or report_all(seen)

    async with fake_door(script) as door:
        ended = await measure(workspace, door)
    assert ended.exit == 0
    usage = ended.file("usage.json")["models"][MODEL]
    assert (usage["calls"], usage["answered"], usage["retries"]) == (6, 2, 4)


@pytest.mark.parametrize("wire", ["responses", "chat", "messages"])
async def test_goes_without_streaming_where_it_is_refused(workspace: Path, wire: str) -> None:
    """A provider that refuses streaming is asked without it from then on."""

    def script(seen: Seen) -> Say | Refuse:
        if seen.body["stream"]:
            return Refuse(400, {"error": {"message": "stream is not supported"}})
        return report_all(seen)

    async with fake_door(script) as door:
        ended = await measure(workspace, door, wire)
    assert ended.exit == 0
    assert len(ended.file("result.json")["observations"]) == 3


async def test_no_answer_at_all(workspace: Path) -> None:
    """When every call goes unanswered, nothing is posted and the exit is 76; the files say why."""
    async with fake_door(lambda seen: Refuse(503)) as door:
        ended = await measure(workspace, door)
    assert ended.exit == 76
    assert door.admissions == 0
    coverage = ended.file("result.json")["coverage"]
    assert [one["state"] for one in coverage] == ["NOT_REACHED"] * 3
    assert "no answer after 6 tries; the last: 503" in coverage[0]["reason"]
    assert len(door.calls) == 12


async def test_two_unanswered_sessions_stop_the_rest(tmp_path: Path) -> None:
    """After two sessions in a row without answers no new one starts."""
    workspace = make_workspace(tmp_path, {f"p{n}": f"area {n}" for n in range(4)})
    async with fake_door(lambda seen: Refuse(503)) as door:
        argv = command()
        argv[argv.index("--session-heap") + 1] = argv[-1]  # room for one session at a time
        done = await anyio.run_process(argv, cwd=workspace, check=False, env=surroundings(door))
    assert done.returncode == 76
    assert len(door.calls) == 12
    coverage = json.loads((workspace / "out/result.json").read_text())["coverage"]
    assert [one["reason"][:11] for one in coverage] == ["the model d"] * 2 + ["not started"] * 2


async def test_a_closed_door_stops_the_measurement(workspace: Path) -> None:
    """A 409 of the door is final: no call is tried again."""
    async with fake_door(lambda seen: Refuse(409)) as door:
        ended = await measure(workspace, door)
    assert ended.exit == 76
    assert len(door.calls) <= 2


async def test_admission_out_of_reach(workspace: Path) -> None:
    """When the observations never reach the gateway, the exit is 75 and the result is there without admission."""
    async with fake_door(report_all, admits=False) as door:
        ended = await measure(workspace, door)
    assert ended.exit == 75
    assert door.admissions == 6
    result = ended.file("result.json")
    assert result["admission"] is None
    assert len(result["observations"]) == 3


NO_ADMISSIONS = [
    b"{}",
    b"[]",
    b'{"digest": "x", "admitted": [], "refused": null}',
    b'{"digest": "x", "admitted": [[[]]], "refused": []}',
    b'{"digest": "x", "admitted": [{"index": true, "id": "a"}], "refused": []}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("answer", NO_ADMISSIONS)
async def test_an_answer_that_is_no_admission(answer: bytes) -> None:
    """What is not the gateway's answer admits nothing, and is asked for again."""

    async def at_once(_seconds: float) -> None:
        await checkpoint()

    async with fake_door(report_all, admission=(200, answer)) as door:
        around = surroundings(door)
        program = Door.at(around["DRIVER_DOOR_URL"], around["DRIVER_DOOR_KEY"])
        with pytest.raises(CallUnanswered, match="not admitted after 6 tries"):
            await admit(program, [], Waits(wall=lambda: 0.0, sleep=at_once))
    assert door.admissions == 6


async def test_no_admission_in_time(workspace: Path) -> None:
    """A measurement whose observations were not admitted when its time is over ends with 75."""
    async with fake_door(report_all, admission=(200, b"{}")) as door:
        ended = await measure(workspace, door, DRIVER_WORK_SECONDS="9")
    assert ended.exit == 75
    assert ended.file("result.json")["admission"] is None


@pytest.mark.parametrize("status", [400, 403, 409, 413])
async def test_admission_refused(workspace: Path, status: int) -> None:
    """An admission that is refused for good is no complete output."""
    async with fake_door(report_all, admission=(status, b'{"code": "request_too_large"}')) as door:
        ended = await measure(workspace, door)
    assert ended.exit == 1
    assert ended.file("runner-debug.json")["fault"].startswith(f"admission was refused: {status}")
    assert door.admissions == 1


async def test_terminated(workspace: Path) -> None:
    """SIGTERM in the middle of a call: what was recorded is in the files, and the exit is 143."""
    stalled = anyio.Event()
    async with fake_door(report_first, stall_from_turn=1, stalled=stalled) as door:
        async with await anyio.open_process(
            command(), cwd=workspace, env=surroundings(door), stdout=subprocess.DEVNULL
        ) as process:
            await stalled.wait()
            process.send_signal(signal.SIGTERM)
            exit = await process.wait()
    assert exit == 143
    result = json.loads((workspace / "out/result.json").read_text())
    assert [one["practiceSlug"] for one in result["observations"]][:1] == ["naming"]
    states = {one["practiceSlug"]: one.get("reason", "RECORDED") for one in result["coverage"]}
    assert (states["naming"], states["errors"]) == ("RECORDED", "the program was asked to stop")
    assert json.loads((workspace / "out/runner-debug.json").read_text())["exit"] == 143


async def test_killed(workspace: Path) -> None:
    """SIGKILL in the middle of a call: what was recorded until then is in complete files."""
    stalled = anyio.Event()
    async with fake_door(report_first, stall_from_turn=1, stalled=stalled) as door:
        async with await anyio.open_process(
            command(), cwd=workspace, env=surroundings(door), stdout=subprocess.DEVNULL
        ) as process:
            await stalled.wait()
            process.kill()
            await process.wait()
    result = json.loads((workspace / "out/result.json").read_text())
    assert "naming" in [one["practiceSlug"] for one in result["observations"]]
    assert json.loads((workspace / "out/usage.json").read_text())["models"][MODEL]["answered"] >= 1


def report_first(seen: Seen) -> Say:
    """The script of a model that reports one practice at a time."""
    return Say(calls=(report(met(seen.practices[0])),))


async def test_the_work_deadline(workspace: Path) -> None:
    """At the work deadline open practices are not reached, and what was recorded is still admitted."""
    async with fake_door(report_first, stall_from_turn=1) as door:
        ended = await measure(workspace, door, DRIVER_WORK_SECONDS="2.5")
    assert ended.exit == 0
    coverage = {one["practiceSlug"]: one for one in ended.file("result.json")["coverage"]}
    assert coverage["naming"]["state"] == "RECORDED"
    assert coverage["errors"] == {
        "practiceSlug": "errors",
        "state": "NOT_REACHED",
        "reason": "the work deadline came",
    }
    assert len(door.posted[0]["observations"]) == 2


@pytest.mark.parametrize("broken", ["{", '{"schemaVersion": 2}', None])
async def test_a_bad_envelope(workspace: Path, broken: str | None) -> None:
    """An envelope that is missing, no JSON, or of another version: exit 42, and no call is made."""
    if broken is None:
        (workspace / "task.json").unlink()
    else:
        (workspace / "task.json").write_text(broken)
    async with fake_door(report_all) as door:
        ended = await measure(workspace, door)
    assert ended.exit == 42
    assert door.calls == []


async def test_unusable_inputs(workspace: Path) -> None:
    """Without a practice index there is no complete output: exit 1, and the files still say so."""
    (workspace / "inputs/practices/index.json").write_text("nonsense")
    async with fake_door(report_all) as door:
        ended = await measure(workspace, door)
    assert ended.exit == 1
    assert "practice index" in ended.file("runner-debug.json")["fault"]
    assert ended.file("result.json")["observations"] == []


async def test_an_unhandled_error(workspace: Path) -> None:
    """An error that nobody foresaw: exit 2, the traceback on stderr, and the debug and usage files are there."""
    (workspace / "out/result.json").mkdir()
    async with fake_door(report_all) as door:
        ended = await measure(workspace, door)
    assert ended.exit == 2
    assert "IsADirectoryError" in ended.errors
    assert ended.file("runner-debug.json")["fault"].startswith("IsADirectoryError")
    assert ended.file("usage.json")["models"] == {}


async def test_a_model_that_stops_is_reminded_once(workspace: Path) -> None:
    """A model that stops is told once what is left; when it stops again the rest is not reached."""

    def script(seen: Seen) -> Say:
        return report_all(seen) if "tests" in seen.practices else Say("Done.")

    async with fake_door(script) as door:
        ended = await measure(workspace, door)
    assert ended.exit == 0
    style = [seen for seen in door.calls if "naming" in seen.practices]
    assert len(style) == 2
    assert "no observation yet: naming, errors" in style[1].text
    coverage = {one["practiceSlug"]: one.get("reason") for one in ended.file("result.json")["coverage"]}
    assert coverage["naming"] == "the model stopped, and again after a reminder"


async def test_forty_calls_are_the_end(tmp_path: Path) -> None:
    """A session that only looks around ends after 40 calls."""
    workspace = make_workspace(tmp_path, {"naming": "style"})
    async with fake_door(lambda seen: Say(calls=(("ls", {}),))) as door:
        ended = await measure(workspace, door)
    assert len(door.calls) == 40
    assert ended.file("result.json")["coverage"][0]["reason"] == "the session used its 40 model calls"


async def test_eight_refusals(tmp_path: Path) -> None:
    """After eight refused observations a practice is not reached, and the session goes on with the others."""
    workspace = make_workspace(tmp_path, {"naming": "style", "errors": "style"})

    def script(seen: Seen) -> Say:
        bad = met("naming", citations=[{"path": "nowhere.py", "startLine": 1, "endLine": 1}])
        return Say(calls=(report(bad),)) if seen.turn < 8 else report_all(seen)

    async with fake_door(script) as door:
        ended = await measure(workspace, door)
    assert len(door.calls) == 9
    coverage = ended.file("result.json")["coverage"]
    assert coverage[0]["reason"].startswith("8 observations were refused; the last: nowhere.py cannot be opened")
    assert coverage[1]["state"] == "RECORDED"


async def test_a_full_context_leaves_old_results_out(tmp_path: Path) -> None:
    """When the provider says that the transcript is too long, old tool results give way and the session goes on."""
    workspace = make_workspace(tmp_path, {"naming": "style"})
    (workspace / "repos/reviewed/big.txt").write_text("word " * 5 + "\n" + "long line\n" * 2000)

    def script(seen: Seen) -> Say | Refuse:
        if seen.text.count("long line") > 1000:
            return Refuse(400, {"error": {"code": "context_length_exceeded", "message": "too long"}})
        if seen.turn < 4:
            start = 1 + 400 * seen.turn
            return Say(calls=(("read", {"path": "repos/reviewed/big.txt", "start": start}),))
        assert "was left out to make room" in seen.text
        return report_all(seen)

    async with fake_door(script) as door:
        ended = await measure(workspace, door)
    assert ended.exit == 0
    assert ended.file("runner-debug.json")["sessions"][0]["shortenedResults"] >= 1


async def test_practices_of_one_area_share_sessions_of_eight(tmp_path: Path) -> None:
    """Ten practices of one area take two sessions."""
    workspace = make_workspace(tmp_path, {f"p{n}": "style" for n in range(10)})
    async with fake_door(report_all) as door:
        ended = await measure(workspace, door)
    assert sorted(len(seen.practices) for seen in door.calls) == [2, 8]
    assert [one["practiceSlug"] for one in ended.file("result.json")["observations"]] == [f"p{n}" for n in range(10)]
