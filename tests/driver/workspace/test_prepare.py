"""Preparing a run's workspace from beginning to end, and leaving it empty when that fails."""

import json
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from driver.errors import ArchiveRefused, ClaimLost, WorkspaceError
from driver.gateway.wire import Runtime
from driver.kind import Workspace
from driver.layout import Layout
from driver.log import Log, render_json
from driver.workspace.prepare import RunWorkspace
from driver.workspace.standing import Standing
from tests.driver.workspace.archives import END, block, file, tree, with_writable
from tests.driver.workspace.source import Answer, HandClock, Source
from tests.driver.workspace.test_fetch import ARCHIVE, CONTENT, field

pytestmark = pytest.mark.anyio


class Case:
    """A workspace with everything around it."""

    def __init__(
        self,
        layout: Layout,
        answer: Answer,
        *,
        runtime: Callable[[], Awaitable[Runtime]] | None = None,
        clean_seconds: float = 20.0,
        standing: Standing | None = None,
    ) -> None:
        self.lines: list[str] = []
        self.source = Source([answer])
        self._digest = field(answer.data)
        clock = HandClock()
        self.workspace: Workspace = RunWorkspace(
            layout,
            runtime=runtime or self._runtime,
            open_archive=self.source,
            log=Log(self.lines.append, render=render_json, wall=clock.wall),
            clock=clock,
            rng=random.Random(1),
            clean_seconds=clean_seconds,
            standing=standing,
        )

    async def _runtime(self) -> Runtime:
        return Runtime(
            contract=1, workspace_bytes=100_000, workspace_digest=self._digest, result_bytes=1, upload_seconds=1
        )

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.lines]


async def test_replaces_what_was_there(layout: Layout) -> None:
    """What a run before left is gone, what the archive holds is there."""
    (layout.root / "out").mkdir()
    (layout.root / "out" / "result.json").write_text("of another run")
    case = Case(layout, Answer(ARCHIVE))
    await case.workspace.prepare()
    assert case.workspace.layout is layout
    assert tree(layout.root) == with_writable(CONTENT)
    assert case.events() == ["workspace.emptied", "workspace.unpacked"]
    await Case(layout, Answer(ARCHIVE)).workspace.prepare()
    assert tree(layout.root) == with_writable(CONTENT)


async def test_a_refused_archive_leaves_it_empty(layout: Layout) -> None:
    """Nothing of an archive stays whose last entry breaks a rule."""
    case = Case(layout, Answer(file(b"a/b", b"x" * 3000) + block(b"evil", b"2", link=b"/etc") + END))
    with pytest.raises(ArchiveRefused, match="'evil': symbolic links are refused"):
        await case.workspace.prepare()
    assert os.listdir(layout.root) == []


async def test_a_lost_claim_leaves_it_empty(layout: Layout) -> None:
    """An error of the gateway comes through, and what the run before left is gone all the same."""
    (layout.root / "old").touch()

    async def runtime() -> Runtime:
        raise ClaimLost

    with pytest.raises(ClaimLost):
        await Case(layout, Answer(ARCHIVE), runtime=runtime).workspace.prepare()
    assert os.listdir(layout.root) == []


async def test_a_cancel_leaves_it_empty(layout: Layout) -> None:
    """A cancel in mid-transfer stops the work first and empties the workspace then."""
    case = Case(layout, Answer(ARCHIVE, stop=4000, hold=anyio.Event()))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(case.workspace.prepare)
        while not case.source.open:  # noqa: ASYNC110 # worker threads come first
            await anyio.sleep(0.001)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert os.listdir(layout.root) == []
    assert case.source.open == 0


async def test_a_cancel_while_emptying_stops_soon(layout: Layout) -> None:
    """Emptying looks for a cancel at each directory, and the clean-up finishes what it left."""
    for number in range(3000):
        (layout.root / f"d{number}").mkdir()
    case = Case(layout, Answer(ARCHIVE))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(case.workspace.prepare)
        while len(os.listdir(layout.root)) == 3000:  # noqa: ASYNC110 # a worker thread removes them
            await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    assert os.listdir(layout.root) == []
    assert case.events() == []


async def test_a_clean_up_that_takes_too_long(layout: Layout) -> None:
    """The clean-up is bounded: what it could not do in time is told, and the first error comes through."""

    async def runtime() -> Runtime:
        (layout.root / "left").mkdir()
        raise ClaimLost

    case = Case(layout, Answer(ARCHIVE), runtime=runtime, clean_seconds=0.0)
    with pytest.raises(ClaimLost):
        await case.workspace.prepare()
    assert case.events() == ["workspace.emptied", "workspace.not_emptied"]
    assert os.listdir(layout.root) == ["left"]


async def test_a_workspace_that_cannot_be_emptied(layout: Layout) -> None:
    """Nothing is asked for when the old content cannot be removed, and both attempts are told."""
    root = layout.root
    root.rmdir()
    root.symlink_to("/nowhere")
    case = Case(layout, Answer(ARCHIVE))
    with pytest.raises(WorkspaceError, match="cannot be emptied"):
        await case.workspace.prepare()
    assert case.source.asked == []
    assert case.events() == ["workspace.not_emptied"]


class Reused:
    """A workspace that one run has prepared, for another run of the same process."""

    def __init__(self, layout: Layout, answer: Answer | None = None) -> None:
        self.layout = layout
        self.standing = Standing()
        self.answer = answer or Answer(ARCHIVE)

    def next_run(self) -> Case:
        return Case(self.layout, self.answer, standing=self.standing)

    async def prepared(self) -> "Reused":
        await self.next_run().workspace.prepare()
        for path in (self.layout.out / "result.json", self.layout.work / "deep" / "x", self.layout.sessions / "s"):
            path.parent.mkdir(exist_ok=True)
            path.write_text("of the run before")
        return self


async def test_the_same_archive_is_used_again(layout: Layout) -> None:
    """What this process has unpacked stays, what programs left is gone, and nothing is asked for; and once more."""
    reused = await Reused(layout).prepared()
    (layout.work / "locked").mkdir(mode=0o000)
    (layout.out / "away").symlink_to("/etc")
    for _ in range(2):
        case = reused.next_run()
        assert await case.workspace.reuse_or_prepare() is True
        assert (case.source.asked, case.events()) == ([], ["workspace.reused"])
        assert tree(layout.root) == with_writable(CONTENT)


async def test_a_process_that_prepared_nothing_downloads(layout: Layout) -> None:
    """What stands there is of somebody else, whatever it looks like."""
    await Reused(layout).prepared()
    case = Case(layout, Answer(ARCHIVE))
    assert await case.workspace.reuse_or_prepare() is False
    assert case.events() == ["workspace.not_reused", "workspace.emptied", "workspace.unpacked"]
    assert tree(layout.root) == with_writable(CONTENT)


async def test_another_archive_is_downloaded(layout: Layout) -> None:
    """A run whose archive has another digest gets its own."""
    reused = await Reused(layout).prepared()
    reused.answer = Answer(file(b"other", b"x") + END)
    assert await reused.next_run().workspace.reuse_or_prepare() is False
    assert tree(layout.root) == with_writable({"other": b"x"})


def rewrite(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(1, 1))
    path.chmod(0o444)


def swap(path: Path) -> None:
    """Another file under the same name, made elsewhere before."""
    path.parent.chmod(0o755)
    other = path.parent / "other"
    other.write_bytes(b"evil")
    other.rename(path)
    path.parent.chmod(0o555)


def cut(path: Path) -> None:
    path.parent.chmod(0o755)
    path.unlink()
    path.parent.chmod(0o555)


def deep(layout: Layout) -> Path:
    """An input that lies in a directory."""
    return layout.root / "a" / "one"


@pytest.mark.parametrize(
    "change",
    [
        lambda layout: rewrite(deep(layout)),
        lambda layout: swap(deep(layout)),
        lambda layout: cut(deep(layout)),
        lambda layout: deep(layout).chmod(0o755),
        lambda layout: (layout.root / "added").touch(),
        lambda layout: (layout.root / "task.json").symlink_to("out/task.json"),
        lambda layout: deep(layout).parent.rename(layout.work / "moved"),
        lambda layout: (layout.out.rename(layout.work / "moved"), layout.out.symlink_to("/etc")),
    ],
)
async def test_inputs_that_a_program_changed_are_downloaded(layout: Layout, change: Callable[[Layout], object]) -> None:
    """No input that was touched since it was unpacked is used again, whatever was done to hide it."""
    reused = await Reused(layout).prepared()
    await wait_a_tick(layout)
    change(layout)
    case = reused.next_run()
    assert await case.workspace.reuse_or_prepare() is False
    assert case.events() == ["workspace.not_reused", "workspace.emptied", "workspace.unpacked"]
    assert tree(layout.root) == with_writable(CONTENT)


async def wait_a_tick(layout: Layout) -> None:
    """Return once the file system's clock has gone on: it moves in steps of some milliseconds."""
    probe = layout.temporary / "probe"
    probe.touch()
    began = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == began:
        probe.touch()


async def test_a_failure_forgets_what_stood_there(layout: Layout) -> None:
    """After a download that failed nothing is used again, and nothing is there to be used."""
    reused = await Reused(layout).prepared()
    reused.answer = Answer(b"no archive" * 1000)
    with pytest.raises(ArchiveRefused):
        await reused.next_run().workspace.prepare()
    assert reused.standing.digest is None
    reused.answer = Answer(ARCHIVE)
    assert await reused.next_run().workspace.reuse_or_prepare() is False
    assert tree(layout.root) == with_writable(CONTENT)


async def test_a_cancel_while_emptying_for_another_use(layout: Layout) -> None:
    """It stops at the next directory, leaves the workspace empty, and nothing is used again."""
    reused = await Reused(layout).prepared()
    for number in range(3000):
        (layout.work / f"d{number}").mkdir()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reused.next_run().workspace.reuse_or_prepare)
        while len(os.listdir(layout.work)) >= 3000:  # noqa: ASYNC110 # a worker thread removes them
            await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    assert os.listdir(layout.root) == []
    assert reused.standing.digest is None
