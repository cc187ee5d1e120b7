"""Runs of many leases, on virtual time: driven once, whatever wall clocks and single renewals do."""

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from driver.front import After
from driver.gateway.wire import End
from driver.kind import HeldRun, Outcome
from tests.driver.holding import Bench, succeed
from tests.driver.memory_gateway import status, swallowed, unreachable
from tests.virtual_time import BACKEND

pytestmark = pytest.mark.anyio

LEASE = 60.0
TEN_LEASES = 600.0
HOUR = 3600.0
STEPS = (HOUR, *((-2 * HOUR, 2 * HOUR) * 4))
COMPLETED = End(outcome="COMPLETED", exit=0)


@pytest.fixture
def anyio_backend() -> object:
    return BACKEND


def working(tmp_path: Path, seconds: float) -> Bench:
    """A driver whose run works so long, in a lease of a minute."""

    async def work(held: HeldRun) -> Outcome:
        await bench.clock.sleep(seconds)
        return await succeed(held)

    terms = {"kind": "WORK", "lease_seconds": LEASE, "deadline_seconds": None, "work_seconds": 2 * TEN_LEASES}
    bench = Bench(tmp_path, work, run=terms)
    return bench


async def test_ten_leases(tmp_path: Path) -> None:
    """A run of ten leases is driven once, under one epoch, and completed once."""
    bench = working(tmp_path, TEN_LEASES)
    assert await bench.hold() is After.PULL
    assert (bench.gateway.ends, bench.gateway.run.epoch) == ([COMPLETED], 1)
    assert 27 <= len(bench.gateway.calls("renew")) <= 33


async def test_a_clock_that_is_set(tmp_path: Path) -> None:
    """A wall clock that jumps by an hour, forth and back, changes nothing: no call comes earlier or later."""
    moments = []
    for steps in (STEPS, ()):
        bench = working(tmp_path, TEN_LEASES)
        async with anyio.create_task_group() as tasks:

            async def set_the_clock(bench: Bench = bench, steps: Sequence[float] = steps) -> None:
                for step in steps:
                    await bench.clock.sleep(65)  # it is an hour ahead when the work is done
                    bench.clock.step(step)

            tasks.start_soon(set_the_clock)
            assert await bench.hold() is After.PULL
            tasks.cancel_scope.cancel("the run is over")
        assert bench.gateway.ends == [COMPLETED]
        moments.append([seen.at - bench.gateway.seen[0].at for seen in bench.gateway.seen])
    assert moments[0] == pytest.approx(moments[1])


async def test_renewals_that_fail_now_and_then(tmp_path: Path) -> None:
    """Renewals that fail for less than three quarters of a lease at a time leave the work as it is."""
    bench = working(tmp_path, TEN_LEASES)
    for first, fault in ((2, unreachable), (8, status(503)), (15, swallowed), (22, status(500))):
        bench.gateway.faults |= {("renew", first): fault, ("renew", first + 1): fault}
    assert await bench.hold() is After.PULL
    assert (bench.gateway.ends, bench.gateway.run.epoch) == ([COMPLETED], 1)
    assert len(bench.named("lease.renewal_failed")) == 8
    assert bench.named("claim.lost") == []


async def test_an_end_of_the_work_while_a_renewal_is_out(tmp_path: Path) -> None:
    """A gateway that swallows renewals does not keep the driver from seeing at once that the work is done."""
    bench = working(tmp_path, 25.0)
    bench.gateway.faults["renew", 0] = swallowed
    assert await bench.hold() is After.PULL
    (renewal,), (runtime,) = bench.gateway.calls("renew"), bench.gateway.calls("runtime")
    assert 18.0 <= renewal.at <= 22.0
    assert runtime.at == pytest.approx(25.0)
    assert bench.gateway.ends == [COMPLETED]
