"""Stopped or killed at any moment of a run: in time, with the right end, nothing left running, nothing lost."""

import signal
import time
from pathlib import Path

import anyio
import pytest

from driver.exits import DriverExit
from driver.stop import HURRIED_SECONDS
from driver.stub.runs import AgentRun, State
from driver.stub.server import Stub, gateway_clock, running_stub
from tests.e2e.driving import Driver, driving, files_of, gone, scenario, shell, stop_signal
from tests.e2e.moments import moments

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(900)]

# What the program ignores costs two fifths of it each time.
GRACE = {"obeys": 25.0, "ignores it": 8.0}
LEASE = 3.0
MOMENTS = moments(5)
WORK = "sleep 0.4; printf '{}' > out/result.json; sleep 0.4"
# The gateway looks for leases that are over four times a second; more on a busy machine.
REAP = 2.0
# Two seconds after the last grace nothing is waited for any more (driver.start); more on a busy machine.
OVERTIME = 6.0


async def seconds_of_a_run(tmp_path: Path, program: str) -> float:
    """How long it takes from the start of the process to the end of the run."""
    began = time.monotonic()
    async with (
        running_stub(scenario()) as stub,
        driving(stub, tmp_path / "whole", DRIVER_PROGRAM_REVIEW=program) as driver,
    ):
        await driver.wait_event("run.ended")
        assert the_run(stub).outcome == "COMPLETED"
    return time.monotonic() - began


def the_run(stub: Stub) -> AgentRun:
    return next(iter(stub.state.runs))


WAYS = {"SIGTERM": (signal.SIGTERM, 1), "SIGTERM twice": (signal.SIGTERM, 2), "SIGINT": (signal.SIGINT, 1)}
PROGRAMS = {"obeys": WORK, "ignores it": f"trap '' TERM; {WORK}"}
CASES = [(way, program) for way in WAYS for program in PROGRAMS]


@pytest.mark.parametrize(("way", "program"), CASES)
async def test_stopped(tmp_path: Path, way: str, program: str) -> None:
    """From the first instant on: exit 0 within the grace, and a claim is never left to expire."""
    number, times = WAYS[way]
    settings = {"DRIVER_PROGRAM_REVIEW": shell(PROGRAMS[program]), "DRIVER_STOP_GRACE": str(GRACE[program])}
    whole = await seconds_of_a_run(tmp_path, settings["DRIVER_PROGRAM_REVIEW"])
    # No two cases strike at the same moments.
    shift = CASES.index((way, program)) / len(CASES)
    outcomes = set()
    for moment in range(MOMENTS):
        workspace = tmp_path / str(moment)
        async with (
            running_stub(scenario(run={"attempts": 1, "lease_seconds": 600})) as stub,
            gone(workspace),
            driving(stub, workspace, **settings) as driver,
        ):
            await anyio.sleep(whole * (moment + shift) / MOMENTS)
            asked = await stop(driver, number, times)
            code = await driver.exit()
            assert time.monotonic() - asked < (GRACE[program] if times == 1 else HURRIED_SECONDS) + OVERTIME
            run = the_run(stub)
            told = [end.outcome for _, _, end in stub.state.ends]
            where = f"moment {moment} of {MOMENTS}: exit {code}, {run.as_json()}, {told}, {driver.names()[-3:]}"
            if times == 2 and driver.named("driver.grace_over") and not driver.named("workspace.emptied"):
                # Two seconds can be too short to import what would hand the claim back.
                assert code in (0, DriverExit.INTERNAL), where
                continue
            # Before its first instruction a process is ended by the signal itself.
            assert code == 0 or (code == -number and run.epoch == 0), where
            assert run.state is not State.LEASED, where
            assert told in ([], ["INTERRUPTED"], ["COMPLETED"]), where
            assert (told == []) == (run.epoch == 0), where
            outcomes.update(told)
    assert outcomes >= {"INTERRUPTED"}


async def stop(driver: Driver, number: signal.Signals, times: int) -> float:
    """Send the signal, each time after the driver has seen the one before; the moment of the last one."""
    stop_signal(driver, number)
    asked = time.monotonic()
    for seen in range(1, times):
        async with anyio.create_task_group() as tasks:

            async def look(seen: int = seen) -> None:
                while len(driver.named("driver.stopping")) < seen:
                    await driver.changed()
                tasks.cancel_scope.cancel("it has seen it")

            tasks.start_soon(look)
            await driver.process.wait()
            tasks.cancel_scope.cancel("it has ended")
        if driver.process.returncode is not None:
            break
        stop_signal(driver, number)
        asked = time.monotonic()
    return asked


async def test_killed(tmp_path: Path) -> None:
    """SIGKILL at any moment: a second driver has the run within a lease, and it is completed once, with its result."""
    whole = await seconds_of_a_run(tmp_path, shell(WORK))
    for number in range(MOMENTS):
        workspace = tmp_path / str(number)
        async with (
            running_stub(scenario(run={"attempts": 3, "lease_seconds": LEASE, "retry_seconds": 0})) as stub,
            gone(workspace),
        ):
            async with driving(stub, workspace, DRIVER_PROGRAM_REVIEW=shell(WORK)) as driver:
                await anyio.sleep(whole * number / MOMENTS)
                driver.process.kill()
                killed = gateway_clock()
            async with driving(stub, workspace, DRIVER_PROGRAM_REVIEW=shell(WORK)) as driver:
                with anyio.fail_after(30):
                    # The first may have ended the run: then nothing else tells that the second takes signals yet.
                    await driver.wait_event("driver.started")
                    await stub.wait_ended()
                stop_signal(driver)
                assert await driver.exit() == 0
            ends = [end.outcome for _, _, end in stub.state.ends]
            assert ends == ["COMPLETED"], f"moment {number} of {MOMENTS}: {the_run(stub).as_json()}"
            assert files_of(stub)["out/result.json"] == b"{}"
            freed = [entry.time - killed for entry in stub.state.journal.named("run.requeued", because="LOST")]
            assert all(after.total_seconds() <= LEASE + REAP for after in freed)
