"""A runner whose program is a fork bomb, each process of it in a session of its own; prints what became of it.

usage: bombed.py, where a user may have a few hundred processes (prlimit --nproc).
"""

import sys
import tempfile
from pathlib import Path

import anyio
import psutil

from driver.clock import BootClock
from driver.gateway.wire import Run
from driver.layout import Layout
from driver.log import Log, render_json
from driver.process.children import Children
from driver.process.environment import ProgramFacts
from driver.process.limits import ProgramLimits
from driver.process.orphans import become_subreaper
from driver.process.programs import ProgramRunner

BOMB = """
import os
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
"""


async def main() -> None:
    become_subreaper()
    with tempfile.TemporaryDirectory() as root:
        run = Run(id="r", kind="REVIEW", subject="s", epoch=1, attempt=1)
        runner = ProgramRunner(
            ProgramFacts(run, "m", Layout(Path(root)), lambda: 9.0, {}),
            limits=ProgramLimits(memory=None, disk=1 << 30, processes=100),
            children=Children(),
            door=lambda: None,
            grace=lambda: 0.0,
            clock=BootClock(),
            log=Log(lambda _line: None, render=render_json, wall=lambda: 0.0),
        )
        for script in (BOMB, "raise SystemExit(5)"):
            end = await runner.run([sys.executable, "-I", "-S", "-c", script], cwd=Path("/"), timeout=20)
            sys.stdout.write(f"{end.exit} {end.reason} {psutil.Process().children(recursive=True)}\n")


anyio.run(main)
