"""The result on its way: what is packed, what a program may have put in its way, and when the exit becomes 43."""

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from driver.gateway.wire import End
from tests.driver.holding import Bench, succeed
from tests.driver.memory_gateway import Fault, lost_reply, status, swallowed, unreachable
from tests.virtual_time import BACKEND

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> object:
    return BACKEND


def delivered(bench: Bench) -> dict[str, bytes]:
    """The files of the result that was kept."""
    (result,) = bench.gateway.state.results
    with tarfile.open(fileobj=io.BytesIO(result.body)) as archive:
        return {member.name: reader.read() for member in archive if (reader := archive.extractfile(member)) is not None}


async def test_content(tmp_path: Path) -> None:
    """What `out/` held comes over whole, with the driver's own report, and nothing else is left in the workspace."""
    bench = Bench(tmp_path, succeed)
    (tmp_path / "out" / "result.json").write_bytes(b"{}")
    before = set(tmp_path.rglob("*"))
    await bench.hold()
    assert delivered(bench) == {"out/result.json": b"{}", "out/driver.json": b"{}\n"}
    assert set(tmp_path.rglob("*")) == before


def no_out(out: Path) -> None:
    out.rmdir()


def linked_report(out: Path) -> None:
    (out.parent / "elsewhere").write_text("kept")
    (out / "driver.json").symlink_to(out.parent / "elsewhere")


def own_report(out: Path) -> None:
    (out / "driver.json").write_text("a lie")


def report_directory(out: Path) -> None:
    (out / "driver.json").mkdir()


@pytest.mark.parametrize("prepare", [no_out, linked_report, own_report, report_directory])
async def test_what_a_program_left_in_the_way(tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    """The report is the driver's whatever a program put in its place, and is written nowhere else."""
    bench = Bench(tmp_path, succeed)
    prepare(tmp_path / "out")
    await bench.hold()
    assert bench.gateway.ends == [End(outcome="COMPLETED", exit=0)]
    assert json.loads(delivered(bench)["out/driver.json"]) == {}
    assert not (tmp_path / "elsewhere").exists() or (tmp_path / "elsewhere").read_text() == "kept"


def linked_out(out: Path) -> None:
    out.rmdir()
    out.symlink_to(out.parent)


def device(out: Path) -> None:
    os.mkfifo(out / "pipe")


def too_large(out: Path) -> None:
    (out / "result.json").write_bytes(bytes(2 << 20))


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (linked_out, "it must be a directory"),
        (device, "entry 'out/pipe'"),
        (too_large, "and the gateway takes 1,048,576"),
    ],
)
async def test_what_cannot_be_packed(tmp_path: Path, prepare: Callable[[Path], None], reason: str) -> None:
    """It fails the run with exit 43 and a reason that says what it was."""
    bench = Bench(tmp_path, succeed)
    prepare(tmp_path / "out")
    await bench.hold()
    (end,) = bench.gateway.ends
    assert (end.outcome, end.exit) == ("FAILED", 43)
    assert end.reason is not None
    assert end.reason.startswith("the result cannot be packed: ")
    assert reason in end.reason


@pytest.mark.parametrize("call", ["runtime", "result"])
@pytest.mark.parametrize("fault", [unreachable, status(503), status(503, retry_after="3600"), status(403), swallowed])
async def test_not_acknowledged_in_time(tmp_path: Path, call: str, fault: Fault) -> None:
    """An upload that is not acknowledged within `uploadSeconds` makes the exit 43, and the run is still ended."""
    bench = Bench(tmp_path, succeed, run={"kind": "WORK", "upload_seconds": 50, "deadline_seconds": 3000})
    bench.gateway.faults[call, 0] = fault
    await bench.hold()
    (end,) = bench.gateway.ends
    assert (end.outcome, end.exit) == ("FAILED", 43)
    assert bench.clock.now() <= (51 if call == "result" else 730)


async def test_slow_upload(tmp_path: Path) -> None:
    """An upload may take all of its time as long as it goes on, and is sent once."""
    bench = Bench(tmp_path, succeed, run={"kind": "WORK", "deadline_seconds": 3000})
    bench.gateway.taking["result"] = 500
    await bench.hold()
    assert bench.gateway.ends == [End(outcome="COMPLETED", exit=0)]
    assert len(bench.gateway.calls("result")) == 1


async def test_upload_without_an_answer(tmp_path: Path) -> None:
    """A connection that goes dead after it took the whole result is given up in time for another try."""
    bench = Bench(tmp_path, succeed, run={"kind": "WORK", "deadline_seconds": 900})
    bench.gateway.faults["result", 1] = swallowed
    await bench.hold()
    assert bench.gateway.ends == [End(outcome="COMPLETED", exit=0)]
    assert [120 <= seen.at < 125 for seen in bench.gateway.calls("result")] == [False, True]


async def test_every_reply_is_lost(tmp_path: Path) -> None:
    """However often the reply is lost, the result is kept once and reads as delivered in the end."""
    bench = Bench(tmp_path, succeed)
    bench.gateway.faults |= {("result", number): lost_reply for number in range(1, 6)}
    await bench.hold()
    assert bench.gateway.ends == [End(outcome="COMPLETED", exit=0)]
    assert bench.gateway.exits == [0]
