"""Many runs in one driver: what it holds after the last one is what it held after the first ones."""

from pathlib import Path

import anyio
import pytest

from driver.stub.server import running_stub
from tests.e2e.added_kinds import python_with_kind
from tests.e2e.driving import driving, scenario, stop_signal

pytestmark = pytest.mark.anyio

RUNS = 60
SETTLED = 20

# Tells what the driver holds, then does a run's work: a door, a program that calls it twice, a result.
MEASURES = '''
import asyncio, gc, os, sys, threading
from driver.kind import Outcome

CALLS = """
import os, urllib.request
for path in ("/v1/models", "/v1/nothing"):
    call = urllib.request.Request(os.environ["DRIVER_DOOR_URL"] + path)
    call.add_header("authorization", "Bearer " + os.environ["DRIVER_DOOR_KEY"])
    try:
        urllib.request.urlopen(call).read()
    except OSError:
        pass
"""

class Added:
    async def run(self, held):
        gc.collect()
        with open("/proc/self/statm") as statm:
            pages = int(statm.read().split()[1])
        held.log.info(
            "kind.measured",
            fds=len(os.listdir("/proc/self/fd")),
            threads=threading.active_count(),
            tasks=len(asyncio.all_tasks()),
            objects=len(gc.get_objects()),
            kib=pages * os.sysconf("SC_PAGESIZE") // 1024,
        )
        layout = held.workspace.layout
        for directory in layout.writable:
            directory.mkdir(parents=True, exist_ok=True)
        with held.work():
            async with held.door():
                await held.programs.run([sys.executable, "-I", "-S", "-c", CALLS], cwd=layout.root, door=True)
        await held.results.deliver(0)
        return Outcome("COMPLETED", exit=0)
'''


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_nothing_piles_up(tmp_path: Path) -> None:
    """Descriptors, threads and tasks are the same after sixty runs; memory has not grown with them."""
    interpreter = python_with_kind(tmp_path, "ADDED", MEASURES)
    async with (
        running_stub(scenario(run=[{"kind": "ADDED", "attempts": 1}] * RUNS)) as stub,
        driving(stub, tmp_path / "w", DRIVER_PYTHON=str(interpreter)) as driver,
    ):
        with anyio.fail_after(100):
            await stub.wait_ended()
        stop_signal(driver)
        assert await driver.exit() == 0
    measured = driver.named("kind.measured")
    assert len(measured) == RUNS
    first, last = measured[:SETTLED], measured[-SETTLED:]
    for held, spare in {"fds": 1, "threads": 1, "tasks": 0, "objects": 500, "kib": 2048}.items():
        assert max(line[held] for line in last) <= max(line[held] for line in first) + spare, held
