"""Where parsing happens, and that it is never left behind."""

import threading

import anyio
import anyio.to_thread
import pytest

from driver.door.permits import ParsingPermit
from driver.door.steps import INLINE_BYTES, in_step

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("size", "here"), [(INLINE_BYTES, True), (INLINE_BYTES + 1, False)])
async def test_large_steps_leave_the_loop(size: int, here: bool) -> None:
    """A small step runs where it is; a large one in a worker thread."""
    assert (await in_step(size, threading.get_ident) == threading.get_ident()) is here


async def test_cancelled_step_holds_its_permit_until_the_worker_stops() -> None:
    """The parsing permit of a cancelled step comes back only when its worker has really stopped."""
    parsing = ParsingPermit()
    working, go_on = threading.Event(), threading.Event()

    def work() -> None:
        working.set()
        assert go_on.wait(10)

    async def step() -> None:
        async with parsing.hold():
            await in_step(INLINE_BYTES + 1, work)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(step)
        await anyio.to_thread.run_sync(working.wait)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            assert parsing.statistics().active == 1
            go_on.set()
    assert parsing.statistics().active == 0
