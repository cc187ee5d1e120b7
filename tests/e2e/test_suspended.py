"""A driver that stood still for longer than its lease, as in a suspended sandbox."""

import signal
from pathlib import Path

import pytest

from driver.stub.server import running_stub
from tests.e2e.driving import UNFINISHED, driving, processes_below, scenario, shell, stop_signal

pytestmark = pytest.mark.anyio


async def test_nothing_is_written_on_waking(tmp_path: Path) -> None:
    """Its claim is over when it wakes: it sends nothing more for it, ends the program, and takes the next claim."""
    workspace = tmp_path / "workspace"
    async with (
        running_stub(scenario(run={"lease_seconds": 2, "attempts": 2, "retry_seconds": 0})) as stub,
        driving(stub, workspace, DRIVER_PROGRAM_REVIEW=shell(UNFINISHED)) as driver,
    ):
        await driver.wait_event("program.output", text="ready", **{"run.epoch": 1})
        programs = processes_below(workspace)
        stop_signal(driver, signal.SIGSTOP)
        await stub.wait_for_event("run.requeued", because="LOST")
        stop_signal(driver, signal.SIGCONT)
        await driver.wait_event("program.output", text="ready", **{"run.epoch": 2})
        assert not set(programs) & set(processes_below(workspace))
        stop_signal(driver)
        assert await driver.exit() == 0
    assert driver.named("claim.lost")[0]["run.epoch"] == 1
    assert driver.named("program.ended", **{"run.epoch": 1})[0]["exit"] == 137
    requeued = stub.state.journal.named("run.requeued", because="LOST")[0].number
    sent = [
        entry.fields
        for entry in stub.state.journal.entries
        if entry.number > requeued and entry.event == "request.received" and entry.fields.get("epoch") == 1
    ]
    assert sent == []
    assert processes_below(workspace) == []
