"""A driver that is killed outright, and is not PID 1: its programs do not outlive it."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import anyio
import psutil
import pytest

from driver.stub.server import running_stub
from tests.e2e.driving import driving, gone, processes_below, scenario, shell

pytestmark = pytest.mark.anyio

# Leaves the group, the session and the parent, forgets its environment, ignores what can be ignored, and stops one.
ESCAPES = """
setsid sh -c 'trap "" TERM HUP INT; env -i sh -c "while :; do sleep 1; done" & env -i sleep 600 & exec sleep 600' &
(setsid env -i sh -c 'kill -STOP $$; sleep 600' &)
for i in 1 2 3 4 5; do (setsid env -i sleep 600 &) ; done
sh -c 'while :; do (setsid sleep 0.05 &); sleep 0.02; done' &
echo ready
exec sleep 600
"""


async def test_nothing_outlives_it(tmp_path: Path) -> None:
    """Every process of its program is gone soon, wherever that had gone to; the claim is left to expire."""
    workspace = tmp_path / "workspace"
    async with running_stub(scenario(run={"attempts": 1})) as stub:
        async with gone(workspace), driving(stub, workspace, DRIVER_PROGRAM_REVIEW=shell(ESCAPES)) as driver:
            await driver.wait_event("program.output", text="ready")
            with anyio.fail_after(20):
                while len(processes_below(workspace)) < 12:  # noqa: ASYNC110 # the kernel tells nobody
                    await anyio.sleep(0.02)
            os.kill(driver.process.pid, signal.SIGKILL)
            assert await driver.exit() == -signal.SIGKILL
        assert stub.state.ends == []


async def test_a_program_that_kills_its_keeper(tmp_path: Path) -> None:
    """What it left behind is the driver's to end; the run ends with the signal."""
    script = (
        "setsid sleep 600 & while [ $(ps -o args= -p $! | cut -c1-5) != sleep ]; do :; done; kill -9 $PPID; sleep 600"
    )
    async with (
        running_stub(scenario(run={"attempts": 1})) as stub,
        driving(stub, tmp_path / "workspace", DRIVER_PROGRAM_REVIEW=shell(script)) as driver,
    ):
        ended = await driver.wait_event("run.ended")
        assert (ended["exit"], ended["reason"]) == (137, "ended by signal 9")
        assert processes_below(tmp_path / "workspace") == []


async def test_the_keeper_reaps(tmp_path: Path) -> None:
    """Orphans of a program that goes on are no zombies two seconds after they ended."""
    script = "for i in $(seq 300); do (setsid true &) ; done; echo ready; exec sleep 600"
    async with (
        running_stub(scenario()) as stub,
        driving(stub, tmp_path / "workspace", DRIVER_PROGRAM_REVIEW=shell(script)) as driver,
    ):
        await driver.wait_event("program.output", text="ready")
        below = psutil.Process(driver.process.pid)
        with anyio.fail_after(10):
            while zombies(below):  # noqa: ASYNC110 # the kernel tells nobody
                await anyio.sleep(0.05)


def zombies(process: psutil.Process) -> int:
    found = 0
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += child.status() == psutil.STATUS_ZOMBIE
    return found
