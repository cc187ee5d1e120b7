"""A stop: asked once it takes the grace, asked twice it hurries, and it interrupts what may be interrupted."""

import os
import signal
from collections.abc import Iterator

import anyio
import pytest

from driver.log import Log, render_json
from driver.stop import Stop, listen
from tests.virtual_time import BACKEND, VirtualClock

LOG = Log(lambda line: None, render=render_json, wall=lambda: 0.0)


@pytest.fixture
def anyio_backend() -> object:
    return BACKEND


@pytest.mark.anyio
async def test_grace() -> None:
    """The end comes a grace after the first request."""
    clock = VirtualClock()
    stop = Stop(25.0, clock)
    assert not stop.asked
    await clock.sleep(10)
    stop.ask()
    assert (stop.asked, stop.hurried, stop.ends_at) == (True, False, 35.0)
    await stop.wait_end()
    assert clock.now() == 35.0


@pytest.mark.anyio
async def test_second_request_hurries() -> None:
    """A second request brings the end to two seconds from then, also for whoever waits already."""
    clock = VirtualClock()
    stop = Stop(25.0, clock)
    stop.ask()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop.wait_end)
        await clock.sleep(5)
        stop.ask()
        assert stop.hurried
    assert clock.now() == 7.0


@pytest.mark.anyio
@pytest.mark.parametrize(("second", "over_at"), [(None, 20.0), (8.0, 8.0), (22.0, 20.0)])
async def test_wait_left(second: float | None, over_at: float) -> None:
    """What is kept for the end is waited for until it is reached, and not at all in a hurry."""
    clock = VirtualClock()
    stop = Stop(25.0, clock)
    stop.ask()
    async with anyio.create_task_group() as tasks:
        if second is not None:
            tasks.start_soon(_ask_after, stop, clock, second)
        await stop.wait_left(5.0)
        assert clock.now() == over_at


@pytest.mark.anyio
async def test_grace_counts_suspended_time() -> None:
    """A driver that was suspended in its grace has no more of it than is left."""
    clock = VirtualClock()
    stop = Stop(25.0, clock)
    stop.ask()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop.wait_end)
        await clock.sleep(3)
        clock.suspend(60)
    assert clock.now() <= 65.0


@pytest.mark.anyio
@pytest.mark.parametrize("after", [0.0, 0.5])
async def test_interrupts(after: float) -> None:
    """A section is left that long after the stop; one that begins after it is left as soon."""
    clock = VirtualClock()
    stop = Stop(25.0, clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_ask_after, stop, clock, 3.0)
        with stop.interrupts(after):
            await anyio.sleep_forever()
    assert clock.now() == 3.0 + after
    with stop.interrupts(after):
        await anyio.sleep_forever()
    assert clock.now() == 3.0 + 2 * after


async def _ask_after(stop: Stop, clock: VirtualClock, seconds: float) -> None:
    await clock.sleep(seconds)
    stop.ask()


@pytest.fixture
def handlers() -> Iterator[None]:
    """The handlers as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.anyio
async def test_signals(handlers: None) -> None:
    """SIGTERM asks once, SIGINT after it hurries; one that comes when nobody listens any more is ignored."""
    stop = Stop(25.0, VirtualClock())
    async with anyio.create_task_group() as tasks:
        await tasks.start(listen, stop, LOG)
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait_asked()
        assert not stop.hurried
        os.kill(os.getpid(), signal.SIGINT)
        await stop.wait_hurried()
        tasks.cancel_scope.cancel()
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
