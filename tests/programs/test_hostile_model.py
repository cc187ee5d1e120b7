"""A model that means harm: whatever it says, the program ends in time with complete files and an exit of its own."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.programs.fake_door import (
    Ended,
    Raw,
    Refuse,
    Say,
    Seen,
    fake_door,
    make_workspace,
    measure,
    met,
    report,
    report_all,
)

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
HELLO = "repos/reviewed/src/hello.py"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return make_workspace(tmp_path, {"naming": "style"})


def states(ended: Ended) -> list[str]:
    """The state of each practice, after a look at the other files: they are complete and may be packed."""
    assert ended.file("runner-debug.json")["exit"] == ended.exit
    assert ended.file("usage.json")["models"].keys() <= {"test-model"}
    assert max(path.stat().st_size for path in ended.out.iterdir()) < 10 * MIB
    assert "Traceback" not in ended.errors
    return [one.get("reason", one["state"]) for one in ended.file("result.json")["coverage"]]


ABSURD_ARGUMENTS: list[tuple[str, Any]] = [
    *(("read", text) for text in ("", "null", "[]", "{", "\0", '"x"', "NaN", '{"path":NaN}', '{"path":["x"]}')),
    *(
        ("read", {"path": path})
        for path in ("../../etc/passwd", "/proc/self/environ", "fifo", "link", "\0", "\ud800", "")
    ),
    *(("read", {"path": HELLO, "start": start}) for start in (-1, 0, True, "1", 1.5, 10**4200, None)),
    ("read", {"path": HELLO, "start": 10**9, "end": 10**9}),
    ("read", '{"path":"x","start":1' + "0" * 5000 + "}"),
    ("grep", {"pattern": ["x"]}),
    ("grep", {"pattern": "(?<=a*)"}),
    ("find", {"glob": "**/" * 300}),
    ("find", {}),
    ("ls", {"path": "/"}),
    ("ls", {"path": 5}),
    ("", {}),
    ("rm\x1b[31m -rf", {"path": "/"}),
    ("report_observation", "[" * 100_000),
    ("report_observation", {"observations": "[" * 900 + "]" * 900}),
    ("report_observation", {"observations": [None, 5, [], "x", {"practiceSlug": {}}]}),
    ("report_observation", {"observations": [met("naming")] * 10_000}),
]


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["responses", "chat", "messages"])
async def test_absurd_tool_calls(workspace: Path, wire: str) -> None:
    """Each call gets an answer, most of them a refusal, and the session goes on; two calls may share an id."""
    os.mkfifo(workspace / "fifo")
    (workspace / "link").symlink_to("/etc/passwd")

    def script(seen: Seen) -> Say:
        return Say(calls=tuple(ABSURD_ARGUMENTS)) if seen.turn == 0 else report_all(seen)

    async with fake_door(script) as door:
        ended = await measure(workspace, door, wire)
    assert ended.exit == 0
    assert states(ended) == ["RECORDED"]
    results = json.dumps(door.calls[1].messages)
    assert "root:" not in results
    assert "DRIVER_DOOR_KEY=" not in results
    assert len(door.calls) == 2


async def test_ten_thousand_calls_in_one_turn(workspace: Path) -> None:
    """The first 64 calls of a turn are done; each of the others is told so, and nothing grows with them."""
    many = tuple(("read", {"path": HELLO}) for _ in range(10_000))

    def script(seen: Seen) -> Say:
        return Say(calls=many) if seen.turn == 0 else report_all(seen)

    async with fake_door(script) as door:
        ended = await measure(workspace, door)
    assert states(ended) == ["RECORDED"]
    outputs = [one["output"] for one in door.calls[1].messages if one.get("type") == "function_call_output"]
    assert len(outputs) == 10_000
    assert sum(output.startswith("[L1]") for output in outputs) == 64
    assert outputs[-1] == "refused: at most 64 tools are called in one turn; call it again"
    session = ended.file("runner-debug.json")["sessions"][0]
    assert session["turns"][0]["toolCalls"] == 10_000
    assert len(session["turns"][0]["calls"]) == 8


def chat(**fields: Any) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def message(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | fields)}\n\n".encode()


def delta(text: str) -> bytes:
    return chat(choices=[{"index": 0, "delta": {"content": text}}])


def block(text: str) -> bytes:
    return message("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


TEXT_START = message("content_block_start", index=0, content_block={"type": "text", "text": ""})
ENDLESS = {
    "chat": (delta("x" * MIB),) * 60,
    "messages": (TEXT_START, *(block("x" * MIB),) * 60),
    "responses": (message("response.output_item.done", item={"type": "message", "content": [{"text": "x" * 3 * MIB}]}),)
    * 20,
}


@pytest.mark.parametrize("wire", ENDLESS)
async def test_sixty_mebibytes_of_text(workspace: Path, wire: str) -> None:
    """An answer that says too much is not held: the session ends, and says why."""
    async with fake_door(lambda seen: Raw(ENDLESS[wire])) as door:
        ended = await measure(workspace, door, wire)
    assert ended.exit == 76
    assert states(ended) == ["the model call was refused: the answer says more than 4,194,304 characters"]
    assert len(door.calls) == 1


HUGE = 10**4299
USAGES = {
    "chat": (chat(choices=[], usage={"prompt_tokens": HUGE, "completion_tokens": -1}), b"data: [DONE]\n\n"),
    "messages": (message("message_delta", usage={"output_tokens": HUGE}), message("message_stop")),
    "responses": (message("response.completed", response={"usage": {"input_tokens": HUGE, "output_tokens": True}}),),
}


@pytest.mark.parametrize("wire", USAGES)
async def test_absurd_usage(workspace: Path, wire: str) -> None:
    """A number of tokens that cannot be meant counts as none, and is summed up into nothing."""
    async with fake_door(lambda seen: Raw(USAGES[wire])) as door:
        ended = await measure(workspace, door, wire)
    assert ended.exit == 0
    assert states(ended) == ["the model stopped, and again after a reminder"]
    usage = ended.file("usage.json")["models"]["test-model"]
    assert (usage["answered"], usage["inputTokens"], usage["outputTokens"]) == (2, 0, 0)


@pytest.mark.parametrize("depth", [900, 960, 970, 980, 990, 1000, 100_000])
async def test_answers_that_are_nested_without_end(workspace: Path, depth: int) -> None:
    """However deep an answer is nested, it ends the session and not the program."""
    nested = b"[" * depth + b"]" * depth
    start = b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":'
    opening = start + b'{"type":"thinking","x":' + nested + b"}}\n\n"

    def script(seen: Seen) -> Raw | Say:
        return Raw((opening, message("message_stop"))) if seen.turn == 0 and len(door.calls) < 3 else report_all(seen)

    async with fake_door(script) as door:
        ended = await measure(workspace, door, "messages", DRIVER_WORK_SECONDS="20")
    assert ended.exit in (0, 76)
    assert len(states(ended)) == 1


@pytest.mark.parametrize(
    "retry_after", ["Mon, 01 Jan 99999999999 00:00:00 GMT", "9" * 5000, "-1", "\xb2", "Mon, 01 Jan 2020 00:00:00 +99"]
)
async def test_absurd_retry_after(workspace: Path, retry_after: str) -> None:
    """A `Retry-After` that says nothing leaves the back-off in force; one in the far future is cut."""
    headers = (("retry-after", retry_after),)

    def script(seen: Seen) -> Refuse | Say:
        return Refuse(429, headers=headers) if len(door.calls) < 2 else report_all(seen)

    async with fake_door(script) as door:
        ended = await measure(workspace, door, DRIVER_WORK_SECONDS="5")
    assert ended.exit in (0, 76)
    assert len(states(ended)) == 1


async def test_a_provider_that_plays_the_full_door(workspace: Path) -> None:
    """Refusals that look like the door's own spend no try, so the work deadline ends them; few are noted."""
    refusal = Refuse(429, {"code": "local_capacity"}, (("retry-after", "0"),))
    async with fake_door(lambda seen: refusal) as door:
        ended = await measure(workspace, door, DRIVER_WORK_SECONDS="4")
    assert ended.exit == 76
    assert states(ended) == ["the work deadline came"]
    session = ended.file("runner-debug.json")["sessions"][0]
    assert session["retried"] >= len(session["retries"]) > 3
    assert session["ended"] == "interrupted"


async def test_a_result_that_cannot_be_written_for_a_while(workspace: Path) -> None:
    """A batch whose files cannot be written stops nothing: the next writing holds it too, and admission is asked."""
    result = workspace / "out/result.json"

    def script(seen: Seen) -> Say:
        if seen.turn == 0:
            result.rename(result.with_name("old"))
            result.mkdir()
            return Say(calls=(report(met("naming", outcome="?")),))
        result.rmdir()
        return report_all(seen)

    async with fake_door(script) as door:
        ended = await measure(workspace, door)
    assert ended.exit == 0
    assert states(ended) == ["RECORDED"]
    assert "the result cannot be written yet" in ended.output
    assert len(door.posted) == 1


async def test_more_observations_than_a_result_may_hold(tmp_path: Path) -> None:
    """What would make the result too large to be uploaded is refused, and what fits is delivered."""
    slugs = {f"p{number:03}": f"area {number // 8}" for number in range(120)}
    workspace = make_workspace(tmp_path, slugs)
    line = "\N{SNOWMAN}" * 100 + "\n"
    (workspace / "repos/reviewed/long.txt").write_text(line * 200, "utf-8")
    places = [{"path": "repos/reviewed/long.txt", "startLine": 1, "endLine": 100}] * 20

    def script(seen: Seen) -> Say:
        if seen.turn == 0:
            return Say(
                calls=(("report_observation", {"observations": [met(s, citations=places) for s in seen.practices]}),)
            )
        return Say("That is all.")

    async with fake_door(script) as door:
        ended = await measure(workspace, door)
    assert ended.exit == 0
    recorded = states(ended).count("RECORDED")
    assert 5 < recorded < 20
    assert len(door.posted[0]["observations"]) == recorded
    refused = ended.file("runner-debug.json")["sessions"][-1]["refusals"][0]
    assert "and the result has room for" in refused
