"""A review whose sessions are another program's: what it reports, how it fails, and how it is stopped."""

import json
from pathlib import Path

import pytest

from tests.agents.fakes import command, fake, review
from tests.e2e.driving import processes_below

pytestmark = pytest.mark.anyio

ALL = ["errors-are-specific", "no-open-ends", "no-debug-leftovers", "tests-come-along"]


async def test_a_good_session(tmp_path: Path) -> None:
    """Each practice that the CLI reports is recorded and admitted, and its tokens are counted."""
    cli = fake(tmp_path / "bin", "answered(10)\nfor slug in ASKED:\n    assert report(slug) == 0\nanswered(20)\n")
    reviewed = await review(tmp_path, command("pi", "--cli", str(cli)))
    assert (reviewed.ended["outcome"], reviewed.ended["exit"]) == ("COMPLETED", 0)
    assert reviewed.states == dict.fromkeys(ALL, "RECORDED")
    assert len(reviewed.files["result.json"]["admission"]["admitted"]) == 4
    (usage,) = reviewed.files["usage.json"]["models"].values()
    assert (usage["calls"], usage["answered"], usage["inputTokens"], usage["cachedTokens"]) == (4, 4, 64, 4)
    assert [session["ended"] for session in reviewed.files["runner-debug.json"]["sessions"]] == ["done", "done"]
    assert processes_below(reviewed.workspace) == []


async def test_side_by_side(tmp_path: Path) -> None:
    """With --at-once 2 both sessions run at the same time, each with a home and a report of its own."""
    body = """
answered(1)
open("work/here-" + ASKED[0], "w").close()
until = time.monotonic() + 30
while sum(name.startswith("here-") for name in os.listdir("work")) < 2:
    assert time.monotonic() < until
    time.sleep(0.02)
for slug in ASKED:
    report(slug)
"""
    reviewed = await review(tmp_path, command("pi", "--cli", str(fake(tmp_path / "bin", body)), "--at-once", "2"))
    assert reviewed.states == dict.fromkeys(ALL, "RECORDED")


async def test_a_refusal_is_corrected(tmp_path: Path) -> None:
    """A refused report ends with 1, is noted, and may be corrected; one for another session's practice is not taken."""
    body = """
answered(1)
assert report("nobody-asked") == 1
for slug in ASKED:
    assert report(slug, outcome="GOOD") == 1
    assert report(slug) == 0
"""
    reviewed = await review(tmp_path, command("pi", "--cli", str(fake(tmp_path / "bin", body))))
    assert reviewed.states == dict.fromkeys(ALL, "RECORDED")
    assert [len(session["refusals"]) for session in reviewed.files["runner-debug.json"]["sessions"]] == [3, 3]


async def test_an_agent_that_stops(tmp_path: Path) -> None:
    """What the CLI leaves out is not reached, with the reason; what it reported counts."""
    body = "answered(1)\nreport(ASKED[0])\n"
    reviewed = await review(tmp_path, command("pi", "--cli", str(fake(tmp_path / "bin", body))))
    assert reviewed.ended["exit"] == 0
    assert [reviewed.states[slug] for slug in ALL] == ["RECORDED", "the agent stopped"] * 2


async def test_a_cli_that_fails(tmp_path: Path) -> None:
    """A CLI that ends before any model call was answered is told with its last words, and the program ends with 76."""
    body = 'print("cannot work: no such thing", file=sys.stderr)\nsys.exit(3)\n'
    reviewed = await review(tmp_path, command("pi", "--cli", str(fake(tmp_path / "bin", body))))
    assert (reviewed.ended["outcome"], reviewed.ended["exit"]) == ("FAILED", 76)
    reason = "the model did not answer: pi ended with 3: cannot work: no such thing"
    assert reviewed.states == dict.fromkeys(ALL, reason)


async def test_no_cli(tmp_path: Path) -> None:
    """A CLI that is not there is told at once, with what to do."""
    program = command("pi", "--cli", str(tmp_path / "none"))
    reviewed = await review(tmp_path, program)
    assert reviewed.ended["exit"] == 1
    assert f"cannot start: there is no {tmp_path / 'none'}; install it, or name it with --cli" in reviewed.output


async def test_stopped(tmp_path: Path) -> None:
    """A CLI that works on, deaf to SIGTERM and with a child, is gone with the program; what it reported is kept."""
    body = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"])
answered(1)
report(ASKED[0])
time.sleep(600)
"""
    reviewed = await review(
        tmp_path, command("pi", "--cli", str(fake(tmp_path / "bin", body))), until="recorded errors-are-specific"
    )
    assert reviewed.ended["outcome"] == "INTERRUPTED"
    assert reviewed.states["errors-are-specific"] == "RECORDED"
    assert reviewed.states["no-open-ends"] != "RECORDED"
    assert processes_below(reviewed.workspace) == []


async def test_surroundings(tmp_path: Path) -> None:
    """The CLI has an exact environment, a home of its own below the run's, and the workspace to work in."""
    body = """
answered(1)
told = {"names": sorted(os.environ), "home": os.environ["HOME"], "cwd": os.getcwd()}
open("work/told.json", "w").write(json.dumps(told))
for slug in ASKED:
    report(slug)
"""
    reviewed = await review(tmp_path, command("pi", "--cli", str(fake(tmp_path / "bin", body))))
    told = json.loads((reviewed.workspace / "work/told.json").read_text())
    own = {"DRIVER_DOOR_KEY", "PI_CODING_AGENT_DIR", "PI_OFFLINE", "PI_SKIP_VERSION_CHECK", "PI_TELEMETRY"}
    assert set(told["names"]) - {"LC_CTYPE"} == own | {"HOME", "LANG", "PATH", "TMPDIR", "TZ"}
    assert told["cwd"] == str(reviewed.workspace)
    assert Path(told["home"]).parts[-2:] == ("agents", "2")
    assert Path(told["home"]).is_relative_to(reviewed.workspace / "work")


async def test_output_without_end(tmp_path: Path) -> None:
    """A CLI that prints without a line's end, and what is no event, harms nothing."""
    body = """
sys.stdout.write("x" * 3_000_000)
for line in ("", "[]", "{}", '{"type": 5}', '{"type": "message_end", "message": 7}', "[" * 10_000):
    print(line)
answered(1)
for slug in ASKED:
    report(slug)
"""
    reviewed = await review(tmp_path, command("pi", "--cli", str(fake(tmp_path / "bin", body))))
    assert reviewed.states == dict.fromkeys(ALL, "RECORDED")
