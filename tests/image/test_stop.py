"""SIGTERM at any instant from the first moment on ends the container in its grace, with nothing held."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from driver.stub.server import running_stub
from tests.e2e.contained import can_take_a_stop
from tests.e2e.driving import driving, scenario
from tests.image.container import Container

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(300)]

GRACE = 5.0
AT_ONCE = 2
# Close together where the shell hands over to the driver, and then over the first two seconds.
INSTANTS = [number * 0.002 for number in range(30)] + [0.06 + number * 0.1 for number in range(20)]


async def test_any_instant(container: Container, tmp_path: Path) -> None:
    """The exit is 0 and no run is held, whenever it comes: the signal is held back over each exec, and never lost."""
    limit = anyio.Semaphore(AT_ONCE)
    async with anyio.create_task_group() as tasks:
        for number, after in enumerate(INSTANTS):
            await limit.acquire()
            tasks.start_soon(_stop_after, container, tmp_path / str(number), after, limit)


async def _stop_after(container: Container, place: Path, after: float, limit: anyio.Semaphore) -> None:
    try:
        place.mkdir()
        async with running_stub(scenario()) as stub:
            settings = {"DRIVER_STOP_GRACE": str(GRACE)}
            async with driving(stub, place, command=container.command_line, **settings) as driver:
                inside = await _started(driver.process.pid)
                await can_take_a_stop(inside)
                await anyio.sleep(after)
                os.kill(inside, signal.SIGTERM)
                asked = time.monotonic()
                assert await driver.exit() == 0, after
                assert time.monotonic() - asked < GRACE, after
            assert [run.state for run in stub.state.runs] in (["QUEUED"], ["ENDED"]), after
    finally:
        limit.release()


async def _started(runc: int) -> int:
    """The container's PID 1, once runc has become what it starts."""
    while True:  # a runtime tells nobody outside
        for pid in _children(runc):
            with suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0] not in (b"", b"runc"):
                    return pid
        await anyio.lowlevel.checkpoint()


def _children(pid: int) -> list[int]:
    """The children of a process, whichever of its threads started them."""
    found = ""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += f" {(thread / 'children').read_text()}"
    return [int(word) for word in found.split()]
