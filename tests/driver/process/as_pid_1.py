"""PID 1 for a test: 500 orphans, then short children under a storm of orphans; prints what became of them.

usage: as_pid_1.py CHILDREN, in a PID namespace of its own (unshare --pid --fork --mount-proc).
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
from driver.process.orphans import reap_forever
from driver.process.programs import ProgramRunner

ROOT = Path("/")
ORPHANS = "for i in $(seq 500); do (setsid true >/dev/null 2>&1 &) ; done; echo born; sleep 60"
STORM = "while :; do (setsid true >/dev/null 2>&1 &); done"


def zombies() -> int:
    return sum(child.status() == psutil.STATUS_ZOMBIE for child in psutil.Process().children(recursive=True))


async def two_seconds_after_500_orphans(runner: ProgramRunner, born: anyio.Event) -> int:
    """How many zombies there are then, with the program still running."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: runner.run(["sh", "-c", ORPHANS], cwd=ROOT))
        await born.wait()
        await anyio.sleep(2)
        found = zombies()
        tasks.cancel_scope.cancel()
    return found


async def wrong_codes(runner: ProgramRunner, children: int) -> list[ProgramEnd]:
    """Run that many short children beside a program that makes orphans on and on."""
    wrong: list[ProgramEnd] = []
    at_once = anyio.Semaphore(4)

    async def short(number: int) -> None:
        async with at_once:
            end = await runner.run(["sh", "-c", f"exit {number % 256}"], cwd=ROOT)
            if end != ProgramEnd(number % 256):
                wrong.append(end)

    async with anyio.create_task_group() as storm:
        storm.start_soon(lambda: runner.run(["sh", "-c", STORM], cwd=ROOT))
        async with anyio.create_task_group() as tasks:
            for number in range(children):
                tasks.start_soon(short, number)
        storm.cancel_scope.cancel()
    return wrong


async def main() -> None:
    assert os.getpid() == 1
    born, children = anyio.Event(), Children()
    with tempfile.TemporaryDirectory() as root:
        run = Run(id="r", kind="REVIEW", subject="s", epoch=1, attempt=1)
        runner = ProgramRunner(
            ProgramFacts(run, "m", Layout(Path(root)), lambda: 9.0, {}),
            limits=ProgramLimits(memory=None, disk=1 << 30, processes=2000),
            children=children,
            door=lambda: None,
            grace=lambda: 0.0,
            clock=BootClock(),
            log=Log(lambda line: born.set() if "born" in line else None, render=render_json, wall=lambda: 0.0),
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reap_forever, children, BootClock())
            sys.stdout.write(f"zombies of orphans: {await two_seconds_after_500_orphans(runner, born)}\n")
            sys.stdout.write(f"wrong codes: {await wrong_codes(runner, int(sys.argv[1]))}\n")
            tasks.cancel_scope.cancel()
    sys.stdout.write(f"left: {psutil.Process().children(recursive=True)}\n")


anyio.run(main)
