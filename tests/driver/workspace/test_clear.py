"""Clearing the workspace for a run that has no archive."""

import json
import os
import random
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest

from driver.errors import WorkspaceError
from driver.gateway.wire import Runtime
from driver.layout import Layout
from driver.log import Log, render_json
from driver.workspace.prepare import RunWorkspace
from driver.workspace.standing import Standing
from tests.driver.workspace.source import HandClock

pytestmark = pytest.mark.anyio


async def no_runtime() -> Runtime:
    raise AssertionError("there is no archive to ask for")


def no_archive(*_: Any, **__: Any) -> AbstractAsyncContextManager[Any]:
    raise AssertionError("there is no archive to fetch")


def workspace(layout: Layout, standing: Standing, lines: list[str]) -> RunWorkspace:
    clock = HandClock()
    return RunWorkspace(
        layout,
        runtime=no_runtime,
        open_archive=no_archive,
        log=Log(lines.append, render=render_json, wall=clock.wall),
        clock=clock,
        rng=random.Random(1),
        standing=standing,
    )


async def test_clears(layout: Layout) -> None:
    """What was there is gone, what programs may write is there and empty, and nothing is asked of the gateway."""
    (layout.root / "inputs").mkdir()
    (layout.root / "inputs" / "old").touch()
    (layout.root / "out").symlink_to("inputs")
    lines: list[str] = []
    await workspace(layout, Standing(), lines).clear()
    assert sorted(os.listdir(layout.root)) == [".sessions", "out", "work"]
    assert sorted(os.listdir(layout.work)) == ["home", "tmp"]
    assert [path for path in layout.writable if path.is_symlink() or not os.access(path, os.W_OK)] == []
    assert [json.loads(line)["event"] for line in lines] == ["workspace.emptied"]


async def test_forgets_what_stood_there(layout: Layout) -> None:
    """A run after it finds no workspace to use again."""
    standing = Standing(digest="sha-256=:x:", finished=1)
    await workspace(layout, standing, []).clear()
    assert standing.digest is None


async def test_cannot_be_cleared(layout: Layout) -> None:
    """A workspace that is no directory is told, and nothing of it is relied on."""
    layout.root.rmdir()
    layout.root.touch()
    standing = Standing(digest="sha-256=:x:", finished=1)
    with pytest.raises(WorkspaceError, match="cannot be emptied"):
        await workspace(layout, standing, []).clear()
    assert standing.digest is None


async def test_a_cancel_leaves_it_empty(layout: Layout) -> None:
    """Cancelled in the middle it stops at the next directory, and leaves nothing."""
    for number in range(3000):
        (layout.root / f"d{number}").mkdir()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(workspace(layout, Standing(), []).clear)
        while len(os.listdir(layout.root)) >= 3000:  # noqa: ASYNC110 # a worker thread removes them
            await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    assert os.listdir(layout.root) == []
