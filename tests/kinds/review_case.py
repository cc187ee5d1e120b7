"""A held run for the review runner: a real workspace on disk, real git, and the real ProgramRunner."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import psutil

from driver.clock import BootClock
from driver.gateway.wire import Context, Run
from driver.kind import BundledPrograms, HeldRun, Programs
from driver.layout import Layout
from driver.log import Log, render_json
from driver.process.children import Children
from driver.process.environment import DoorAddress, ProgramFacts
from driver.process.limits import ProgramLimits
from driver.process.programs import ProgramRunner
from driver.work import Section, WorkSections
from driver.workspace.empty import empty

ENVELOPE: dict[str, Any] = {
    "schemaVersion": 3,
    "jobId": "job-1",
    "workspaceId": "workspace-1",
    "prompt": "Review the change.",
    "pullRequestNumber": 7,
    "repositoryFullName": "octo/cat",
    "contextRoot": "context",
    "repositoryRoot": "repos/reviewed",
    "manifest": "INDEX.json",
    "practiceIndex": "inputs/practices/index.json",
    "compositionRequest": "inputs/composition.json",
    "preparedFeedback": "inputs/feedback.json",
    "precomputeScripts": "inputs/precompute",
}

GIT_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


def git(repository: Path, *arguments: str | bytes, given: bytes = b"") -> str:
    """Run git in a repository that a test makes, and return what it prints."""
    command = ["git", "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always", *arguments]
    done = subprocess.run(command, cwd=repository, env=GIT_ENVIRONMENT, input=given, capture_output=True, check=True)
    return done.stdout.decode().strip()


def commit(repository: Path) -> str:
    """Commit everything that is in the checkout; returns the commit's name."""
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "x")
    return git(repository, "rev-parse", "HEAD")


@dataclass
class CaseWorkspace:
    """A workspace that is filled by a function instead of an archive."""

    layout: Layout
    fill: Callable[[], Awaitable[None]]
    stands: bool = False

    async def prepare(self) -> None:
        await self.fill()
        self._make_writable()

    async def reuse_or_prepare(self) -> bool:
        if not self.stands:
            await self.prepare()
        return self.stands

    async def clear(self) -> None:
        await anyio.to_thread.run_sync(empty, self.layout.root)
        self._make_writable()

    def _make_writable(self) -> None:
        for directory in self.layout.writable:
            directory.mkdir(parents=True, exist_ok=True)


@dataclass
class CaseResults:
    """Remembers what was delivered: the exit, and the files that `out/` held."""

    layout: Layout
    failure: Exception | None = None
    delivered: list[tuple[int, list[str]]] = field(default_factory=list)

    async def deliver(self, exit: int) -> str:
        if self.failure is not None:
            raise self.failure
        self.delivered.append((exit, sorted(path.name for path in self.layout.out.iterdir())))
        return "sha-256=:digest:"


class Case:
    """A HeldRun over the workspace at `root`, and what a test wants to see and steer of it."""

    programs: Programs

    def __init__(self, layout: Layout, sink: "Sink") -> None:
        self.run = Run(id="run-1", kind="REVIEW", subject="subject-1", epoch=1, attempt=1)
        self.context = context()
        self.workspace = CaseWorkspace(layout, self._fill)
        self.results = CaseResults(layout)
        self.sink = sink
        self.log = sink.log
        self.bundled = bundled((sys.executable, "-c", "raise SystemExit(0)"))
        self.seconds = 600.0
        self.door_open = False
        self.sections = WorkSections()
        self.filling: list[Callable[[Path], None]] = []
        self.preparing: Callable[[], Awaitable[None]] | None = None

    async def _fill(self) -> None:
        if self.preparing is not None:
            await self.preparing()
        for step in self.filling:
            step(self.workspace.layout.root)

    @asynccontextmanager
    async def door(self) -> AsyncIterator[None]:
        self.door_open = True
        yield
        self.door_open = False

    def work(self) -> AbstractContextManager[Section]:
        return self.sections.section()

    def work_seconds(self) -> float:
        return self.seconds

    def held(self) -> HeldRun:
        """This case, as the type that a kind sees."""
        return self


class Sink:
    """The log lines of a case."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.log = Log(self._add, render=render_json, level="debug", wall=lambda: 0.0)
        self._waiting: list[tuple[str, anyio.Event]] = []

    def _add(self, line: str) -> None:
        record = json.loads(line)
        self.records.append(record)
        for text, event in self._waiting:
            if record.get("text") == text:
                event.set()

    async def printed(self, text: str) -> None:
        """Return once a program has printed this line."""
        event = anyio.Event()
        self._waiting.append((text, event))
        if any(record.get("text") == text for record in self.records):
            return
        await event.wait()

    def events(self, prefix: str) -> list[dict[str, Any]]:
        """The records of events that begin so, without what each line has."""
        return [
            {key: value for key, value in record.items() if key not in ("time", "level")}
            for record in self.records
            if record["event"].startswith(prefix)
        ]


def context(**more: Any) -> Context:
    """A context as the gateway sends it."""
    model = {"id": "model-1", "wire": "responses"}
    return Context.model_validate({"kind": "REVIEW", "model": model, "workSeconds": 600, **more})


def bundled(review: tuple[str, ...]) -> BundledPrograms:
    """The programs' commands with small numbers."""
    return BundledPrograms(review=review, compose=(), digest=(), session_heap=1000, session_size=100)


def small_change(root: Path) -> None:
    """Fill a workspace: a repository with one changed file, and a valid envelope."""
    repository = root / "repos" / "reviewed"
    repository.mkdir(parents=True)
    git(repository, "init", "--quiet")
    (repository / "a.txt").write_text("one\ntwo\n")
    base = commit(repository)
    (repository / "a.txt").write_text("one\nTWO\n")
    write_inputs(root, base, commit(repository))


def write_inputs(root: Path, base: str, head: str, **changes: Any) -> None:
    """The envelope and the metadata of a workspace."""
    (root / "task.json").write_text(json.dumps({**ENVELOPE, **changes}))
    (root / "context").mkdir(exist_ok=True)
    (root / "context" / "metadata.json").write_text(json.dumps({"baseCommit": base, "headCommit": head}))


def script(path: Path, text: str) -> None:
    """An executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def make_case(tmp_path: Path, path: str = os.environ["PATH"]) -> Case:
    """A case with an empty workspace, the real program runner, and room for whatever a test starts."""
    sink = Sink()
    layout = Layout(tmp_path / "workspace")
    layout.root.mkdir()
    case = Case(layout, sink)
    facts = ProgramFacts(
        run=case.run, model="model-1", layout=layout, work_seconds=case.work_seconds, host={"PATH": path}
    )
    case.programs = ProgramRunner(
        facts,
        limits=ProgramLimits(memory=None, disk=1 << 30, processes=200),
        children=Children(child.pid for child in psutil.Process().children()),
        door=lambda: DoorAddress("http://127.0.0.1:9", "key-of-the-door") if case.door_open else None,
        grace=lambda: 5.0,
        clock=BootClock(),
        log=case.log,
    )
    return case
