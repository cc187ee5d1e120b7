"""A disk that is full, at whatever stage: the run ends with the reason `disk`, and nothing that was done is lost."""

import os
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from driver.stub.server import Stub, running_stub
from tests.conftest import Disk
from tests.e2e.driving import ROOT, Driver, closed_port, driving, files_of, scenario, shell, stop_signal

pytestmark = pytest.mark.anyio

FILLS = "cat /dev/zero > work/full"
TWICE = {"attempts": 2, "retry_seconds": 0}


async def both_runs(workspace: Path, **environment: str) -> tuple[list[dict[str, Any]], Driver, Stub]:
    """The ends of a run and of its second try on this disk."""
    async with running_stub(scenario(run=TWICE)) as stub, driving(stub, workspace, **environment) as driver:
        await driver.wait_event("run.ended", **{"run.epoch": 2})
        stop_signal(driver)
        assert await driver.exit() == 0
    return driver.named("run.ended"), driver, stub


def told(ended: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    return [(one["outcome"], one["exit"], one["reason"]) for one in ended]


@pytest.mark.parametrize("options", ["size=32k", "size=10m,nr_inodes=20", "size=10m,nr_inodes=1"])
async def test_no_room_for_the_workspace(tmp_path: Path, disk: Disk, options: str) -> None:
    """Nothing of the workspace is left, the log says what did not fit, and the driver pulls on."""
    workspace = disk(options)
    ended, driver, _ = await both_runs(workspace)
    assert told(ended) == [("FAILED", 1, "disk")] * 2
    errors = [one["error"] for one in driver.named("run.no_room")]
    assert len(errors) == 2
    assert all(error.endswith("No space left on device") for error in errors)
    assert list(workspace.iterdir()) == []


async def test_a_program_that_fills_the_disk_and_fails(tmp_path: Path, disk: Disk) -> None:
    """Its result is uploaded whole, with its own exit; the next run has the disk again."""
    program = shell(f"head -c 300000 /dev/zero > out/result.json; {FILLS}; exit 7")
    ended, driver, stub = await both_runs(disk("size=3m"), DRIVER_PROGRAM_REVIEW=program)
    assert told(ended) == [("FAILED", 7, "disk")] * 2
    assert len(driver.named("workspace.unpacked")) == 2
    files = files_of(stub)
    assert files["out/result.json"] == bytes(300_000)
    assert set(files) == {"out/result.json", "out/driver.json"}


async def test_a_program_that_is_done_on_a_full_disk(tmp_path: Path, disk: Disk) -> None:
    """What it measured is worth as much as on an empty one."""
    program = shell(f"printf '{{}}' > out/result.json; {FILLS}; exit 0")
    async with (
        running_stub(scenario()) as stub,
        driving(stub, disk("size=3m"), DRIVER_PROGRAM_REVIEW=program) as driver,
    ):
        ended = await driver.wait_event("run.ended")
        stop_signal(driver)
        assert await driver.exit() == 0
    assert (ended["outcome"], ended["exit"]) == ("COMPLETED", 0)
    assert files_of(stub)["out/result.json"] == b"{}"


async def test_the_log_on_a_full_disk(tmp_path: Path, disk: Disk) -> None:
    """A log that cannot be written ends nothing: the run is told to the gateway as ever."""
    full = disk("size=4k")
    async with running_stub(scenario(run={"attempts": 1})) as stub:
        with open(full / "log", "wb") as log, closed_port() as closed:
            process = await anyio.open_process(
                [str(ROOT / "entrypoint.sh")],
                env={
                    "PATH": os.environ["PATH"],
                    "DRIVER_PYTHON": os.environ.get("DRIVER_PYTHON", str(ROOT / ".venv/bin/python")),
                    "HEPHAESTUS_GATEWAY_URL": stub.url,
                    "HEPHAESTUS_SANDBOX_TOKEN": stub.token,
                    "DRIVER_WORKSPACE": str(tmp_path / "workspace"),
                    "DRIVER_ISOLATION_TARGET": f"127.0.0.1:{closed}",
                    "TMPDIR": str(full),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            try:
                await stub.wait_ended()
                process.terminate()
                with anyio.fail_after(40):
                    assert await process.wait() == 0
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
    assert (full / "log").stat().st_size == 4096
    (result,) = stub.state.results
    assert result.exit == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_every_size_of_a_disk(tmp_path: Path, disk: Disk) -> None:
    """From one that holds nothing to one that holds everything: a run is completed, or fails for want of room."""
    seen: dict[tuple[str, int | None], set[str]] = {}
    for kib in range(8, 260, 8):
        root = disk(f"size={kib}k")
        try:
            async with running_stub(scenario(run={"attempts": 1})) as stub, driving(stub, root) as driver:
                ended = await driver.wait_event("run.ended")
                stop_signal(driver)
                assert await driver.exit() == 0
        finally:
            subprocess.run(["umount", root], check=True)
        assert ended["outcome"] == "COMPLETED" or ended["reason"] == "disk", (kib, ended)
        stages = [name for name in driver.names() if name in ("workspace.unpacked", "change.derived", "door.opened")]
        seen.setdefault((ended["outcome"], ended["exit"]), set()).update(stages[-1:])
        assert (stub.state.results.newest("run-1") is not None) == bool(stages), kib
    assert seen == {("FAILED", 1): set(), ("FAILED", 2): {"workspace.unpacked"}, ("COMPLETED", 0): {"door.opened"}}
