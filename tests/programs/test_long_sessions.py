"""Sessions longer than the model's context: older results give way, nothing recorded is lost, and they go on."""

import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.programs.fake_door import (
    Ended,
    FakeDoor,
    Raw,
    Refuse,
    Say,
    Seen,
    command,
    fake_door,
    make_workspace,
    met,
    report,
    surroundings,
)

pytestmark = pytest.mark.anyio

WIRES = ["responses", "chat", "messages"]
CONTEXT = 40_000
LEFT_OUT = "was left out to make room; call it again if needed)"
SO_FAR = "Recorded so far: naming. Not reached: nothing. Still open: errors."


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = make_workspace(tmp_path, {"naming": "style", "errors": "style"})
    (root / "long.txt").write_text(
        "".join(f"line {number:06} of a long file, about {number % 7}\n" for number in range(9000))
    )
    return root


async def run(workspace: Path, door: FakeDoor, wire: str, *more: str) -> Ended:
    argv = [*command(wire), *more]
    done = await anyio.run_process(argv, cwd=workspace, check=False, env=surroundings(door))
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode(), workspace / "out")


def tokens(seen: Seen) -> int:
    """What the scripted provider counts."""
    return len(json.dumps(seen.body, ensure_ascii=False)) * 10 // 32


def look(seen: Seen, reads: int) -> Say:
    """A turn that reads on in the long file."""
    starts = (1 + 400 * (seen.turn * reads + number) for number in range(reads))
    return Say(calls=tuple(("read", {"path": "long.txt", "start": start}) for start in starts), tokens=tokens(seen))


def done(seen: Seen, slug: str) -> Say:
    return Say(calls=(report(met(slug)),), tokens=tokens(seen))


def check_whole(ended: Ended) -> None:
    """Both practices are recorded, and the session ended as one that fits."""
    assert (ended.exit, ended.errors) == (0, "")
    assert [one["state"] for one in ended.file("result.json")["coverage"]] == ["RECORDED", "RECORDED"]
    assert ended.file("runner-debug.json")["sessions"][0]["ended"] == "done"


@pytest.mark.parametrize("wire", WIRES)
async def test_told_by_the_context(workspace: Path, wire: str) -> None:
    """The oldest results are left out before the context is full: the provider never has to refuse."""
    counts: list[int] = []

    def script(seen: Seen) -> Say:
        counts.append(tokens(seen))
        if seen.turn == 0:
            return done(seen, "naming")
        if seen.turn < 9:
            return look(seen, 2)
        assert LEFT_OUT in seen.text
        assert SO_FAR in seen.text
        assert seen.text.count("line 006400") == 1
        return done(seen, "errors")

    async with fake_door(script) as door:
        ended = await run(workspace, door, wire, "--context-tokens", str(CONTEXT))
    check_whole(ended)
    assert max(counts) <= CONTEXT
    # It was used, too, and each time there was room for some turns.
    assert max(counts) > CONTEXT / 2
    assert 1 <= ended.output.count("transcript near the model's context") <= 4


@pytest.mark.parametrize("wire", WIRES)
async def test_one_turn_of_more_than_the_context(workspace: Path, wire: str) -> None:
    """Results that never fit are left out unread, all but as many as there is room for, and the model is told."""
    counts: list[int] = []

    def script(seen: Seen) -> Say:
        counts.append(tokens(seen))
        if seen.turn == 0:
            return look(seen, 20)
        assert seen.text.count(LEFT_OUT) in range(10, 20)
        assert "Recorded so far: nothing. Not reached: nothing. Still open: naming, errors." in seen.text
        return done(seen, "naming") if seen.turn == 1 else done(seen, "errors")

    async with fake_door(script) as door:
        check_whole(await run(workspace, door, wire, "--context-tokens", str(CONTEXT)))
    assert max(counts) <= CONTEXT


def failed_stream(*events: dict[str, Any]) -> Raw:
    return Raw(tuple(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events))


TOLD_FULL: list[tuple[str, Refuse | Raw]] = [
    (
        "responses",
        Refuse(400, {"error": {"message": "Your input exceeds the limit.", "code": "context_length_exceeded"}}),
    ),
    (
        "responses",
        failed_stream(
            {"type": "response.created", "response": {}},
            {"type": "response.failed", "response": {"error": {"code": "context_length_exceeded", "message": "Long."}}},
        ),
    ),
    (
        "responses",
        failed_stream(
            {"type": "error", "code": None, "message": "Your input exceeds the context window of this model."}
        ),
    ),
    (
        "chat",
        Refuse(
            400,
            {"error": {"message": "This model's maximum context length is 8192 tokens.", "type": "x", "code": None}},
        ),
    ),
    ("chat", Refuse(400, {"error": {"code": 400, "message": "Too long.", "type": "exceed_context_size_error"}})),
    ("chat", Refuse(422, {"object": "error", "message": "The input token count exceeds the maximum number of tokens"})),
    ("chat", Refuse(413, {"error": {"message": "Request too large."}})),
    ("chat", Raw((b'data: {"error": {"message": "the context window is full", "code": 400}}\n\n',))),
    (
        "messages",
        Refuse(
            400, {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}}
        ),
    ),
    (
        "messages",
        Refuse(
            400,
            {"type": "error", "error": {"message": "input length and `max_tokens` exceed context limit: 9 + 8 > 8"}},
        ),
    ),
    ("messages", Refuse(413, {"type": "error", "error": {"type": "request_too_large", "message": "Too large"}})),
    (
        "messages",
        failed_stream(
            {"type": "message_start", "message": {"usage": {"input_tokens": 9}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Half an ans"}},
            {"type": "message_delta", "delta": {"stop_reason": "model_context_window_exceeded"}, "usage": {}},
            {"type": "message_stop"},
        ),
    ),
]


@pytest.mark.parametrize(("wire", "refusal"), TOLD_FULL)
async def test_told_by_the_provider(workspace: Path, wire: str, refusal: Refuse | Raw) -> None:
    """However a provider says that its context is full: older results are left out, and the session goes on."""
    refused = 0

    def script(seen: Seen) -> Say | Refuse | Raw:
        nonlocal refused
        if tokens(seen) > CONTEXT:
            refused += 1
            return refusal
        if seen.turn == 0:
            return done(seen, "naming")
        if seen.turn < 9:
            return look(seen, 2)
        assert LEFT_OUT in seen.text
        assert SO_FAR in seen.text
        assert "Half an ans" not in seen.text
        return done(seen, "errors")

    async with fake_door(script) as door:
        check_whole(await run(workspace, door, wire))
    assert 1 <= refused <= 6


@pytest.mark.parametrize("wire", WIRES)
async def test_a_reminder_carries_what_was_recorded(workspace: Path, wire: str) -> None:
    """Where the newest message is a reminder, the note about what was left out stands in it, once."""

    def script(seen: Seen) -> Say | Refuse:
        if seen.turn == 0:
            return Say(calls=(*look(seen, 3).calls, report(met("naming"))))
        if seen.turn == 1:
            return Say("Done.")
        if LEFT_OUT not in seen.text:
            return Refuse(413)
        last = json.dumps(seen.messages[-1])
        assert seen.messages[-1]["role"] == "user"
        assert "no observation yet: errors" in last
        assert last.count(SO_FAR) == 1
        return done(seen, "errors")

    async with fake_door(script) as door:
        check_whole(await run(workspace, door, wire))


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", WIRES)
async def test_an_answer_that_reached_its_bound(workspace: Path, wire: str, streamed: bool) -> None:
    """The model is told that its answer was cut, with the results of its calls or with the reminder."""
    cut = "(Your last answer reached the bound for one answer and was cut there. Do it again in smaller steps.)"

    def script(seen: Seen) -> Say | Refuse:
        if seen.body["stream"] and not streamed:
            return Refuse(400, {"error": {"message": "stream is not supported"}})
        if seen.turn < 3:
            assert seen.text.count(cut) == seen.turn
            says = [
                Say("And so on and", bound=True),
                Say(calls=(("ls", {}), ("ls", {})), bound=True),
                Say(calls=(("ls", {}),)),
            ]
            return says[seen.turn]
        assert seen.text.count(cut) == 2
        return Say(calls=(report(met("naming"), met("errors")),))

    async with fake_door(script) as door:
        check_whole(await run(workspace, door, wire))


async def test_an_overdrawn_heap(tmp_path: Path) -> None:
    """Sessions that grow past the heap give older results back and go on; in the end nothing is charged."""
    workspace = make_workspace(tmp_path, {f"p{number}": f"area {number}" for number in range(8)})
    (workspace / "long.txt").write_text("a line of some length, and a little more of it\n" * 9000)

    def script(seen: Seen) -> Say:
        if seen.turn < 8:
            return look(seen, 2)
        if seen.turn == 8:
            return look(seen, 1)
        return Say(calls=(report(*(met(slug) for slug in seen.practices)),))

    async with fake_door(script) as door:
        ended = await run(workspace, door, "messages", "--session-heap", "500000", "--session-size", "60000")
    assert ended.exit == 0
    assert {one["state"] for one in ended.file("result.json")["coverage"]} == {"RECORDED"}
    debug = ended.file("runner-debug.json")
    assert debug["heap"]["usedBytes"] == 0
    assert debug["heap"]["peakUsedBytes"] > 500_000
    assert sum(session["shortenedResults"] for session in debug["sessions"]) >= 8
    # One turn of 50 KB a session is what the heap can be overdrawn by.
    assert debug["heap"]["peakUsedBytes"] <= 500_000 + 8 * 60_000


@pytest.mark.parametrize("wire", WIRES)
async def test_every_call_keeps_its_result(workspace: Path, wire: str) -> None:
    """What was left out is a result still: each call has one, and its note says what it was."""
    last: list[Seen] = []

    def script(seen: Seen) -> Say:
        last.append(seen)
        if seen.turn < 12:
            return look(seen, 3)
        return Say(calls=(report(met("naming"), met("errors")),))

    async with fake_door(script) as door:
        check_whole(await run(workspace, door, wire, "--context-tokens", str(CONTEXT)))
    text = last[-1].text
    results = {"responses": "function_call_output", "chat": "tool_call_id", "messages": "tool_result"}[wire]
    assert text.count(f'"{results}"') == 36
    notes = re.findall(r"\(the output of `read long.txt (\d+)` was left out", text)
    assert notes == [str(1 + 400 * number) for number in range(len(notes))]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_small_context_gets_a_small_brief(workspace: Path, wire: str) -> None:
    """Where the context is told, a large change is cut for it, and the brief says where the rest is."""
    (workspace / "work/change/diff.patch").write_text("".join(f"[L{n}] +changed line {n}\n" for n in range(1, 9000)))
    (workspace / "context/talk.txt").write_text("much was said about it\n" * 4000)

    def script(seen: Seen) -> Say | Refuse:
        if tokens(seen) > 16_000:
            return Refuse(413)
        assert "bytes are shown; read `work/change/diff.patch` for the rest)" in seen.text
        return look(seen, 2) if seen.turn < 3 else Say(calls=(report(met("naming"), met("errors")),))

    async with fake_door(script) as door:
        check_whole(await run(workspace, door, wire, "--context-tokens", "16000"))
    assert len(door.calls) == 4


async def test_a_brief_longer_than_the_context(workspace: Path) -> None:
    """Where there is nothing to leave out, the practices are not reached, and the reason says why."""

    def script(seen: Seen) -> Refuse:
        return Refuse(400, {"error": {"message": "prompt is too long", "code": "context_length_exceeded"}})

    async with fake_door(script) as door:
        ended = await run(workspace, door, "responses", "--context-tokens", "1000")
    assert ended.exit == 76
    assert len(door.calls) == 1
    for one in ended.file("result.json")["coverage"]:
        assert one["reason"].startswith("the model takes no transcript of this length: 400 context_length_exceeded")
