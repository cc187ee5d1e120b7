"""Golden transcripts: every byte that a whole session sends, on each wire, streamed and not.

A line of a file in `golden/` is one request, as how many bytes it keeps of the one before and what comes after those.
After a change that is meant, write them anew with `RENEW_GOLDEN=1 pytest tests/programs/test_golden_transcripts.py`,
and read the difference.
"""

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.programs.fake_door import Refuse, Say, Seen, fake_door, make_workspace, measure, met, report

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parent / "golden"
WIRES = ["responses", "chat", "messages"]
HELLO = "repos/reviewed/src/hello.py"
NOTES = "".join(f"{number}. Ein langer Satz – naïve, 長い文, 😀 “quoted” \\ back\t\x1b[1m\n" for number in range(1, 31))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = make_workspace(tmp_path, {"naming": "style", "errors": "style"})
    (root / "notes.md").write_text(NOTES)
    return root


def script(seen: Seen) -> Say | Refuse:
    """Parallel calls, tools that refuse, an item that is refused, a stop, a full context, and the end."""
    match seen.turn:
        case 0:
            calls: list[tuple[str, Any]] = [
                ("read", {"path": "notes.md"}),
                ("grep", {"pattern": "hel+o", "path": "repos"}),
            ]
            return Say(
                "Ich schaue – zuerst 😀.", calls=(*calls, ("read", {"path": "../x"}), ("rm", {}), ("ls", '{"pa'))
            )
        case 1:
            quote = {"path": "src/hello.py", "startLine": 9, "endLine": 9, "quote": "return 'hello ' + name"}
            bad = met("errors", outcome="NOT_MET")
            return Say(calls=(report(met("naming", summary="Größe “ok”.", citations=[quote]), bad), ("ls", {})))
        case 2:
            return Say("Done.")
        case 3:
            return Say(calls=(("read", {"path": HELLO, "start": 5}), ("find", {"glob": "*.md"})))
    if "was left out to make room" not in seen.text:
        return Refuse(413, {"error": {"message": "too large"}})
    return Say(calls=(report(met("errors", outcome="UNDETERMINED")),))


def not_streamed(seen: Seen) -> Say | Refuse:
    """The same of a provider that refuses streaming."""
    if seen.body["stream"]:
        return Refuse(400, {"error": {"message": "Unsupported value: 'stream' does not support true with this model."}})
    return script(seen)


def kept(before: bytes, after: bytes) -> int:
    """How many bytes two requests begin with alike."""
    pairs = enumerate(zip(before, after, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(before), len(after)))


def lines(bodies: list[bytes]) -> str:
    """The requests as the lines of a golden file."""
    text = []
    before = b""
    for body in bodies:
        keeps = kept(before, body)
        # Not in the middle of a character.
        while keeps < len(body) and body[keeps] & 0xC0 == 0x80:
            keeps -= 1
        text.append(json.dumps({"keeps": keeps, "adds": body[keeps:].decode()}, ensure_ascii=False))
        before = body
    return "\n".join(text) + "\n"


def requests(text: str) -> list[bytes]:
    """The requests that the lines of a golden file stand for."""
    bodies: list[bytes] = []
    for line in text.split("\n")[:-1]:
        request = json.loads(line)
        before = bodies[-1] if bodies else b""
        bodies.append(before[: request["keeps"]] + request["adds"].encode())
    return bodies


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_session_sends_exactly_this(workspace: Path, wire: str, streamed: bool) -> None:
    """The requests of a session are these, byte for byte; see the top of this file to write them anew."""
    async with fake_door(script if streamed else not_streamed) as door:
        ended = await measure(workspace, door, wire)
    assert (ended.exit, ended.errors) == (0, "")
    sent = [seen.raw for seen in door.calls]
    golden = GOLDEN / f"{wire}{'' if streamed else '-whole'}.jsonl"
    if os.environ.get("RENEW_GOLDEN"):
        golden.write_text(lines(sent), "utf-8", newline="\n")
    expected = requests(golden.read_text("utf-8"))
    assert [json.loads(body) for body in sent] == [json.loads(body) for body in expected]
    assert sent == expected


@pytest.mark.parametrize("wire", WIRES)
def test_a_call_repeats_the_one_before(wire: str) -> None:
    """Each request begins with all of the one before but its end, so that a provider's cache serves it.

    Only where older results are left out it does not, from the first of them on.
    """
    bodies = requests((GOLDEN / f"{wire}.jsonl").read_text("utf-8"))
    breaks = [place for place, (one, next) in enumerate(pairwise(bodies)) if kept(one, next) < len(one) - 4]
    assert breaks == [4]
    assert len(bodies) == 6


@pytest.mark.parametrize("wire", WIRES)
def test_a_streamed_session_is_the_same_as_one_that_is_not(wire: str) -> None:
    """What was said and done is in both, whatever way it came in."""
    streamed, whole = (requests((GOLDEN / f"{wire}{kind}.jsonl").read_text("utf-8")) for kind in ("", "-whole"))
    where = "input" if wire == "responses" else "messages"
    transcripts = [json.loads(body)[where] for body in streamed], [json.loads(body)[where] for body in whole[1:]]
    assert transcripts[0] == transcripts[1]
    assert [json.loads(body)["stream"] for body in whole] == [True, *[False] * 6]
