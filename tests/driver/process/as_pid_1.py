"""PID 1 for a test: 500 orphans while 200 short children run; prints what is left of them.

Run in a PID namespace of its own (unshare --pid --fork --mount-proc).
"""

import os
import sys
import tempfile
from pathlib import Path

import anyio
import psutil

from driver.clock import BootClock
from driver.gateway.wire import Run
from driver.kind import ProgramEnd
from driver.layout import Layout
from driver.log import Log, render_json
from driver.process.children import Children
from driver.process.environment import ProgramFacts
from driver.process.limits import ProgramLimits
from driver.process.programs import ProgramRunner

ORPHANS = "for i in $(seq 500); do (setsid sleep 0.05 >/dev/null 2>&1 &) ; done; sleep 1; exit 7"


async def main() -> None:
    assert os.getpid() == 1
    with tempfile.TemporaryDirectory() as root:
        runner = ProgramRunner(
            ProgramFacts(
                Run(id="r", kind="REVIEW", subject="s", epoch=1, attempt=1), "m", Layout(Path(root)), lambda: 9.0, {}
            ),
            limits=ProgramLimits(memory=None, disk=1 << 30, processes=2000),
            children=Children(),
            door=lambda: None,
            grace=lambda: 1.0,
            clock=BootClock(),
            log=Log(lambda _line: None, render=render_json, wall=lambda: 0.0),
        )
        ends: list[ProgramEnd] = []

        async def orphans() -> None:
            ends.append(await runner.run(["sh", "-c", ORPHANS], cwd=Path("/")))

        async def short(number: int) -> None:
            async with at_once:
                end = await runner.run(["sh", "-c", f"exit {number}"], cwd=Path("/"))
                assert end == ProgramEnd(number)

        at_once = anyio.Semaphore(4)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(orphans)
            for number in range(200):
                tasks.start_soon(short, number)
    sys.stdout.write(f"zombies: {len(psutil.Process().children(recursive=True))}\n")
    sys.stdout.write(f"codes: {'true' if ends == [ProgramEnd(7)] else ends}\n")


anyio.run(main)
