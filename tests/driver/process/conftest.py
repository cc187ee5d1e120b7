"""Real programs below this test process, and a log that keeps its records."""

import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from driver.clock import BootClock
from driver.gateway.wire import Run
from driver.layout import Layout
from driver.log import Log, render_json
from driver.process.children import Children
from driver.process.confinement import Confinement
from driver.process.environment import DoorAddress, ProgramFacts
from driver.process.limits import ProgramLimits
from driver.process.orphans import become_subreaper
from driver.process.programs import ProgramRunner
from driver.secrets import Secrets

ANYWHERE = Confinement((Path("/"),), file_bytes=1 << 30)
PYTHON = (sys.executable, "-I", "-S", "-c")


@dataclass
class Recorded:
    """A log and what was written to it."""

    log: Log
    records: list[dict[str, Any]]
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def add(self, line: str) -> None:
        self.records.append(json.loads(line))
        self._changed.set()
        self._changed = anyio.Event()

    async def printed(self, text: str) -> None:
        """Return once a program has printed this line."""
        while text not in self.text("stdout"):
            await self.changed()

    async def changed(self) -> None:
        """Return after the next line of the log."""
        await self._changed.wait()

    def of(self, event: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["event"] == event]

    def text(self, stream: str = "stdout") -> list[str]:
        return [record["text"] for record in self.of("program.output") if record["stream"] == stream]


@dataclass
class Bench:
    """What a runner is made from; a test changes what it is about."""

    layout: Layout
    children: Children
    recorded: Recorded
    limits: ProgramLimits = field(default_factory=lambda: ProgramLimits(memory=None, disk=1 << 30, processes=512))
    grace: Callable[[], float] = lambda: 5.0
    door: Callable[[], DoorAddress | None] = lambda: None

    def runner(self, hidden: tuple[Path, ...] = ()) -> ProgramRunner:
        run = Run(id="run-1", kind="REVIEW", subject="subject", epoch=1, attempt=2)
        return ProgramRunner(
            ProgramFacts(run=run, model="model-1", layout=self.layout, work_seconds=lambda: 90.7, host={}),
            limits=self.limits,
            children=self.children,
            door=self.door,
            grace=self.grace,
            clock=BootClock(),
            log=self.recorded.log,
            hidden=hidden,
        )


@pytest.fixture
def recorded() -> Recorded:
    lines: list[Recorded] = []
    log = Log(lambda line: lines[0].add(line), render=render_json, secrets=Secrets(), wall=lambda: 0.0)
    lines.append(Recorded(log, []))
    return lines[0]


@pytest.fixture
def children() -> Iterator[Children]:
    """A registry, with this process as a subreaper; nothing may be left below it when the test ends."""
    before = {child.pid for child in psutil.Process().children()}
    become_subreaper()
    yield Children(spared=before)
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    for child in left:
        child.kill()
        child.wait()
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)
    assert left == []


@pytest.fixture
def bench(tmp_path: Path, children: Children, recorded: Recorded) -> Bench:
    layout = Layout(tmp_path)
    for directory in layout.writable:
        directory.mkdir(parents=True, exist_ok=True)
    return Bench(layout, children, recorded)
