"""Hostile output against the real driver: bounded, masked, and nothing that a terminal acts on."""

import base64
import shlex
import sys
import urllib.parse
from pathlib import Path

import anyio
import pytest

from driver.stub.server import running_stub
from tests.e2e.contained import contained, environment, needs_root
from tests.e2e.driving import driving, scenario
from tests.hostile.attack import PROGRAMS, USERS, Case, attack

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MIB = 1 << 20


@pytest.mark.parametrize("user", USERS)
async def test_flood(tmp_path: Path, user: str) -> None:
    """Of 256 MiB without a line end head and tail are kept, the cut is counted, and the driver's memory is flat."""
    needs_root()
    seen = await attack(tmp_path, Case("flood"), user)
    assert seen.grown_kib < 16 * 1024
    assert (seen.output[0], seen.output[-1]) == ("the first line", "the last line")
    kept = sum(map(len, seen.output))
    assert 3.8 * MIB < kept <= 4 * MIB
    (ended,) = seen.driver.named("program.ended", level="info")
    assert kept + ended["dropped_bytes"] == len("the first line") + 256 * MIB + len("\nthe last line\n")
    assert len(seen.driver.named("program.output_cut")) == 1


@pytest.mark.parametrize("log", ["json", "console"])
async def test_controls(tmp_path: Path, log: str) -> None:
    """In both renderings each line is text, with no character that a terminal acts on, and none is a line of ours."""
    needs_root()
    uid, gid = USERS["anybody"]
    written = tmp_path / "log"
    inside = tmp_path / "root"
    inside.mkdir()
    program = shlex.join([sys.executable, "-I", "-S", str(PROGRAMS / "controls.py")])
    script = f"exec {shlex.join(contained(inside, uid=uid, gid=gid))} > {shlex.quote(str(written))}"
    settings = environment({"DRIVER_PROGRAM_REVIEW": program, "DRIVER_LOG": log})
    async with (
        running_stub(scenario()) as stub,
        driving(stub, tmp_path, command=("sh", "-c", script), **settings),
    ):
        with anyio.fail_after(30):
            await stub.wait_ended()
    lines = written.read_text("utf-8").split("\n")
    assert [line for line in lines if any((ord(c) < 32 and c != "\t") or 127 <= ord(c) < 160 for c in line)] == []
    assert not set("\u202e\u2028\u2066") & set("".join(lines))
    assert any("shown to the end" in line for line in lines)
    (forged,) = [line for line in lines if "forged" in line]
    assert "12:00:00 !!run.ended" in (forged[8:] if log == "console" else forged)


@pytest.mark.parametrize("user", USERS)
async def test_door_key(tmp_path: Path, user: str) -> None:
    """The door's key is in no line of the log, nor over several of one stream, whatever its coding and its splits."""
    needs_root()
    seen = await attack(tmp_path, Case("door_key"), user)
    assert "printed all" in seen.output
    # It is known to nobody but the program and the driver; the line that it ends with tells it in another way.
    (told,) = [line for line in seen.output if line.startswith("one by one: ")]
    key = bytes(int(number) for number in told.removeprefix("one by one: ").split())
    assert len(key) >= 32
    forms = [key, key.hex().encode(), base64.b64encode(key)[:-4], base64.b64encode(b"x" + key)[4:-4]]
    forms.append(urllib.parse.quote(key, safe="").encode())
    for stream in ("stdout", "stderr"):
        printed = "".join(line["text"] for line in seen.driver.named("program.output", stream=stream)).lower()
        assert [form for form in forms if form.decode().lower() in printed] == []
    assert sum("***" in line for line in seen.output) > 100
