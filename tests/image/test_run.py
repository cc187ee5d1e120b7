"""The image run as a Pod: read-only, any user, no capability, PID 1, in cgroups of its own; the stub is outside."""

import signal
from pathlib import Path

import anyio
import pytest

from driver.stub.scenario import load_scenario
from driver.stub.server import running_stub
from tests.e2e.driving import Driver, driving, files_of
from tests.image.container import Container

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600)]

AS_DEPLOYED = (1000, 1000, 1000)


async def test_demo(container: Container, tmp_path: Path) -> None:
    """A review and its feedback are completed by a user that nobody knows, with nothing wrong on the way."""
    async with running_stub(load_scenario("compose")) as stub:
        async with driving(stub, tmp_path, command=container.command_line) as driver:
            with anyio.fail_after(120):
                await stub.wait_ended()
            await _stop(driver)
        assert [run.outcome for run in stub.state.runs] == ["COMPLETED", "COMPLETED"]
        assert "out/result.json" in files_of(stub)
        assert "out/feedback.json" in files_of(stub, "run-1-compose")
    assert [line for line in driver.events if line["level"] in ("warning", "error")] == []


async def _stop(driver: Driver) -> None:
    """runc hands a SIGTERM on to PID 1."""
    driver.process.send_signal(signal.SIGTERM)
    assert await driver.exit() == 0
