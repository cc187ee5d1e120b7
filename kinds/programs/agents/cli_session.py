"""One session of a CLI: its home, its command to report with, its run, and what it reported."""

import os
import shlex
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream

from kinds.programs import brief, citations, progress
from kinds.programs.agents import journal, output, process, reporting
from kinds.programs.agents.agent import Place
from kinds.programs.agents.output import Tail
from kinds.programs.agents.process import Start
from kinds.programs.agents.site import Cli, Site
from kinds.programs.citations import Citation
from kinds.programs.heap import Room
from kinds.programs.measurement import Office, Talk
from kinds.programs.observations import Verdict
from kinds.programs.practices import Plan
from kinds.programs.session_log import SessionLog
from kinds.programs.wires import Usage

CONTEXT_TOKENS: Final = 128_000
"""What a CLI is told of the model's context where nobody told us."""

LOOK_SECONDS: Final = 0.25
AFTERWARDS_SECONDS: Final = 10.0
"""What a CLI has for its last words once every practice has a result."""

COLLECT_SECONDS: Final = 5.0
"""What the last look at the reports may take once the session is stopped."""

# What a CLI gets of our own environment; the rest is made for it.
_PASSED_ON: Final = ("LANG", "TZ", "TMPDIR")


@dataclass
class CliSession:
    """One session about one plan (measurement.Talk)."""

    cli: Cli
    plan: Plan
    office: Office
    site: Site
    log: SessionLog
    _errors: Tail = field(default_factory=Tail)
    _unread: deque[bytes] = field(default_factory=deque)
    _answered: int = 0
    _since: float = field(default_factory=anyio.current_time)

    async def run(self, shared: brief.Shared) -> None:
        """Run the CLI until it ends or is done; what it reported is in the book then, whatever stops it."""
        try:
            directory, home = await anyio.to_thread.run_sync(self.site.make, self.site.number())
            command = await anyio.to_thread.run_sync(self._prepare, directory, shared)
            started = await anyio.to_thread.run_sync(self._launch, command, home)
            reader = journal.Reader(self.office.workspace, f".sessions/agents/{directory.name}/{journal.NAME}")
            try:
                code = await self._talk(started, directory / "brief.md", reader)
            finally:
                await self._collect(reader)
            reason = self._reason(code)
        except OSError as error:
            self.log.ended, reason = "failed", f"{self.cli.name} cannot be run: {error}"
        self._end(reason)

    def _prepare(self, directory: Path, shared: brief.Shared) -> Path:
        envelope = self.office.envelope
        workspace = self.office.workspace.absolute
        asked = reporting.Asked(workspace, envelope.repository_root, self.plan.slugs)
        command = reporting.install(directory, asked)
        rules = (Path(brief.__file__).parent / "prompts" / "agent.md").read_text(encoding="utf-8")
        rules = rules.replace("REPORT_COMMAND", shlex.quote(str(command))).replace("WORKSPACE", workspace)
        text = f"{rules}\n{brief.compose(shared, self.plan)}\n"
        (directory / "brief.md").write_text(text, encoding="utf-8", errors="replace")
        return command

    def _launch(self, command: Path, home: Path) -> Start:
        around = self.office.around
        door = around.door
        place = Place(
            Path(self.office.workspace.absolute),
            home,
            f"http://{door.host}:{door.port}{door.prefix}",
            door.key,
            around.model,
            self.cli.wire,
            around.context_tokens or CONTEXT_TOKENS,
        )
        launch = self.cli.agent.launch(place)
        for name, text in launch.files.items():
            path = home / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {"HOME": str(home), "PATH": f"{command.parent}:{os.environ.get('PATH', os.defpath)}"}
        cwd = home / launch.directory if launch.directory else place.workspace
        return Start((self.cli.path, *launch.arguments), environment | dict(launch.environment), cwd)

    async def _talk(self, start: Start, asked: Path, reader: journal.Reader) -> int | None:
        async with process.running(start, brief=asked) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch, reader, tasks.cancel_scope)
                async with anyio.create_task_group() as reading:
                    reading.start_soon(self._follow, running.stdout)
                    reading.start_soon(self._keep, running.stderr)
                    await running.wait()
                    # Whoever still holds its output is not waited for.
                    reading.cancel_scope.deadline = anyio.current_time() + process.GRACE_SECONDS
                tasks.cancel_scope.cancel()
        return running.returncode

    async def _follow(self, stream: ByteReceiveStream) -> None:
        async for line in output.lines(stream):
            event = output.event(line)
            if event is None:
                self._errors.add(line)
            else:
                self._hear(event)

    async def _keep(self, stream: ByteReceiveStream) -> None:
        async for line in output.lines(stream):
            self._errors.add(line)

    async def _watch(self, reader: journal.Reader, work: anyio.CancelScope) -> None:
        """Take what is reported while the CLI works. Once nothing is open, it has a moment for its last words."""
        while self._left():
            await anyio.sleep(LOOK_SECONDS)
            await self._take(reader)
        await anyio.sleep(AFTERWARDS_SECONDS)
        work.cancel()

    async def _collect(self, reader: journal.Reader) -> None:
        with anyio.move_on_after(COLLECT_SECONDS, shield=True):
            await self._take(reader)

    async def _take(self, reader: journal.Reader) -> None:
        self._unread += await anyio.to_thread.run_sync(reader.new)
        changed = bool(self._unread)
        while self._unread:
            # A line leaves the queue once it is in the book: a cancelled look loses none.
            verdict = await anyio.to_thread.run_sync(self._replay, self._unread[0], limiter=self.site.checks)
            self._unread.popleft()
            self.log.judged(verdict, "a report")
        if changed:
            self.office.save()

    def _replay(self, line: bytes) -> Verdict:
        return journal.replay(self.office.report.book, self.plan.slugs, line, self._check)

    def _check(self, given: Any) -> Citation:
        return citations.check(self.office.workspace, self.office.envelope.repository_root, given)

    def _hear(self, event: Mapping[str, Any]) -> None:
        agent = self.cli.agent
        usage = agent.usage(event)
        if usage is None and not (agent.answered and agent.answered(event) and not self._answered):
            return
        figures = self.office.report.usage.of(self.office.around.model)
        if agent.answered is None or not self._answered:
            figures.calls += 1
            figures.add(Usage())
        self._answered += 1
        if usage is not None:
            figures.more(usage)
            now = anyio.current_time()
            self.log.told(usage, now - self._since)
            self._since = now

    def _left(self) -> list[str]:
        return self.office.report.book.open(self.plan.slugs)

    def _reason(self, code: int | None) -> str:
        """Why something may still be open, once the CLI has ended; notes how it ended."""
        told = f"{self.cli.name} ended with {code}" + (f": {self._errors.last}" if self._errors.last else "")
        if not self._left():
            self.log.ended = "done"
        elif not self._answered:
            self.log.ended = "unanswered"
            return f"the model did not answer: {told}"
        else:
            self.log.ended = "failed" if code else "stopped"
        return told if code else "the agent stopped"

    def _end(self, reason: str) -> None:
        left = self._left()
        self.office.report.book.close(self.plan.slugs, reason)
        tail = f"; not reached: {', '.join(left)} ({reason})" if left else ""
        progress.say(f"[{self.plan.name}] session ended: {self.log.ended}{tail}")
        for line in self._errors if left else ():
            progress.say(f"[{self.plan.name}] {self.cli.name}: {line}")


def sessions(cli: Cli, home: Path) -> Callable[[Office], Talk]:
    """How a measurement holds its sessions with this CLI (measurement.Measurement). `home` is the run's own."""

    def make(office: Office) -> Talk:
        site = Site(office.around.workspace, home)

        async def talk(plan: Plan, _: Room, log: SessionLog, shared: brief.Shared) -> None:
            await CliSession(cli, plan, office, site, log).run(shared)

        return talk

    return make
