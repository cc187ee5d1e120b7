"""SIGTERM at any instant from the start on ends the driver in its grace, and hands back what it holds."""

import os
import signal
import time
from pathlib import Path

import anyio
import pytest

from driver.stub.server import running_stub
from tests.e2e.contained import HELD, can_take_a_stop, contained, environment, needs_root, pid_1
from tests.e2e.driving import Driver, driving, processes_below, scenario

pytestmark = pytest.mark.anyio

GRACE = 5.0
SOME = [0.0, 0.05, 0.2, 0.5, 1.0]
MANY = [number / 30 for number in range(60)]


@pytest.mark.parametrize("after", SOME)
async def test_sigterm(tmp_path: Path, after: float) -> None:
    """The exit is 0, or the signal's where it came before there was a handler; nothing is left and no run is held."""
    await stop_after(tmp_path, after)


@pytest.mark.parametrize("after", SOME)
async def test_sigterm_as_pid_1(tmp_path: Path, after: float) -> None:
    """As PID 1 the exit is 0, at whatever instant the signal could be taken."""
    needs_root()
    await stop_pid_1_after(tmp_path, after)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("as_pid_1", [False, True])
async def test_sigterm_at_sixty_instants(tmp_path: Path, as_pid_1: bool) -> None:
    """The same for sixty instants over the first two seconds."""
    if as_pid_1:
        needs_root()
    for number, after in enumerate(MANY):
        directory = tmp_path / str(number)
        directory.mkdir()
        await (stop_pid_1_after if as_pid_1 else stop_after)(directory, after)


async def stop_after(directory: Path, after: float) -> None:
    workspace = directory / "workspace"
    async with running_stub(scenario()) as stub:
        async with driving(stub, workspace, DRIVER_STOP_GRACE=str(GRACE)) as driver:
            await anyio.sleep(after)
            code = await stopped(driver, driver.process.pid)
        assert code == 0 or (code == -signal.SIGTERM and driver.events == [])
        assert processes_below(workspace) == []
        assert [run.state for run in stub.state.runs] in (["QUEUED"], ["ENDED"])


async def stop_pid_1_after(directory: Path, after: float) -> None:
    root = directory / "root"
    root.mkdir()
    settings = environment({"DRIVER_STOP_GRACE": str(GRACE)})
    async with running_stub(scenario()) as stub:
        container = contained(root, uid=65534, gid=65534, command=HELD)
        async with driving(stub, root, command=container, **settings) as driver:
            inside = await started(driver)
            await can_take_a_stop(inside)
            await anyio.sleep(after)
            code = await stopped(driver, inside)
        assert code == 0
        assert [run.state for run in stub.state.runs] in (["QUEUED"], ["ENDED"])


async def stopped(driver: Driver, pid: int) -> int:
    """Send SIGTERM and return the exit code, which has to come within the grace."""
    os.kill(pid, signal.SIGTERM)
    asked = time.monotonic()
    code = await driver.exit()
    assert time.monotonic() - asked < GRACE
    return code


async def started(driver: Driver) -> int:
    """The pid of the container's PID 1, once it is the entrypoint, or the driver already."""
    while True:  # a container of namespaces tells nobody that it is ready
        await anyio.sleep(0.001)
        try:
            inside = pid_1(driver.process.pid)
            command = Path(f"/proc/{inside}/cmdline").read_bytes()
        except (ValueError, OSError):
            continue
        if b"mount" not in command and not command.startswith((b"chroot", b"setpriv")):
            return inside
