"""Telling the end: what may go wrong between a kind that is done and a gateway that knows it; on virtual time."""

import itertools
import socket
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from driver.front import After
from driver.gateway.wire import End
from driver.kind import HeldRun, Outcome
from driver.values import Target
from tests.driver.holding import Bench, succeed, work_on
from tests.driver.memory_gateway import Fault, body, late, lost_reply, status, swallowed, unreachable
from tests.virtual_time import BACKEND

pytestmark = pytest.mark.anyio

COMPLETED = End(outcome="COMPLETED", exit=0)
NO_DEADLINE = {"kind": "WORK", "deadline_seconds": None, "attempts": 9, "retry_seconds": 0}


@pytest.fixture
def anyio_backend() -> object:
    return BACKEND


def longest_gap(bench: Bench, until: float) -> float:
    """The longest time between two renewals, or between the last one and `until`."""
    moments = [0.0, *(seen.at for seen in bench.gateway.calls("renew")), until]
    return max(b - a for a, b in itertools.pairwise(moments))


async def test_renewal_refused_after_the_result_was_kept(tmp_path: Path) -> None:
    """A gateway that ends the run with its result refuses to renew it; the run still ends as it was."""

    async def linger(held: HeldRun) -> Outcome:
        await held.results.deliver(0)
        await anyio.sleep(30)
        return Outcome("COMPLETED", exit=0)

    bench = Bench(tmp_path, linger)
    bench.gateway.faults["renew", 0] = status(409)
    assert await bench.hold() is After.PULL
    assert bench.gateway.ends == [COMPLETED]
    assert len(bench.gateway.calls("renew")) == 1
    assert bench.named("claim.lost") == []


async def test_renewal_refused_because_the_end_was_taken(tmp_path: Path) -> None:
    """An end whose reply is late is repeated, also after a renewal was refused for it, and reads ALREADY_ENDED."""
    bench = Bench(tmp_path, succeed)
    bench.gateway.faults |= {("end", 1): late(60), ("end", 2): swallowed, ("end", 3): swallowed}
    assert await bench.hold() is After.PULL
    assert bench.gateway.ends == [COMPLETED]
    assert len(bench.gateway.calls("renew")) == 1
    assert [line["answer"] for line in bench.named("run.ended")] == ["ALREADY_ENDED"]
    assert bench.named("run.end_failed") == []


async def test_doubt_while_ending(tmp_path: Path) -> None:
    """A claim that falls into doubt before its end is acknowledged is told no more."""
    bench = Bench(tmp_path, succeed)
    bench.gateway.faults |= {("end", 0): status(503), ("renew", 0): unreachable}
    assert await bench.hold() is After.PULL
    assert bench.clock.now() == 45.0
    assert max(seen.at for seen in bench.gateway.calls("end")) < 45.0
    assert [line["error"] for line in bench.named("run.end_failed")] == [
        "no renewal succeeded for three quarters of the lease"
    ]


async def test_token_rejected_while_ending(tmp_path: Path) -> None:
    """A 401 to a renewal stops the telling too, and the driver pulls no more."""
    bench = Bench(tmp_path, succeed)
    bench.gateway.faults |= {("end", 0): status(503), ("renew", 1): status(401)}
    assert await bench.hold() is After.TAKEN_BACK
    assert bench.gateway.seen[-1].call == "renew"


@pytest.mark.parametrize("fault", [lost_reply, late(60)])
async def test_reply_to_unisolated_is_lost(tmp_path: Path, fault: Fault) -> None:
    """UNISOLATED revokes the token, so what follows reads 401: the driver is not isolated all the same."""
    with socket.socket() as target:
        target.bind(("127.0.0.1", 0))
        bench = Bench(tmp_path, work_on, target=Target("127.0.0.1", target.getsockname()[1]))
        bench.gateway.faults["end", 1] = fault
        async with anyio.create_task_group() as tasks:
            after: list[After] = []

            async def hold() -> None:
                after.append(await bench.hold())

            tasks.start_soon(hold)
            await bench.clock.sleep(10)
            target.listen()
    assert after == [After.UNISOLATED]
    assert [end.outcome for end in bench.gateway.ends] == ["UNISOLATED"]


async def test_end_that_is_never_taken(tmp_path: Path) -> None:
    """With a gateway that renews but takes no end, the driver gives up after five minutes, renewing until then."""
    bench = Bench(tmp_path, succeed, run=NO_DEADLINE)
    bench.gateway.faults["end", 0] = status(500)
    assert await bench.hold() is After.PULL
    assert 270 <= bench.clock.now() <= 300
    assert longest_gap(bench, bench.clock.now()) <= 22.1
    assert len(bench.named("run.end_failed")) == 1


@pytest.mark.parametrize("told", ["3600", "99999999999999999999"])
async def test_absurd_retry_after(tmp_path: Path, told: str) -> None:
    """A pause that does not fit is cut, so that the end is still told."""
    bench = Bench(tmp_path, succeed, run=NO_DEADLINE)
    bench.gateway.faults["end", 1] = status(503, retry_after=told)
    assert await bench.hold() is After.PULL
    assert bench.gateway.ends == [COMPLETED]
    assert 149 <= bench.clock.now() <= 151


async def test_completion_that_is_refused(tmp_path: Path) -> None:
    """A completion that will never be taken is told as a failure with the status, once."""
    bench = Bench(tmp_path, succeed)
    bench.gateway.faults["end", 1] = status(422)
    assert await bench.hold() is After.PULL
    assert bench.gateway.ends == [End(outcome="FAILED", exit=0, reason="end: refused with 422")]
    assert len(bench.named("run.end_failed")) == 1


@pytest.mark.parametrize("fault", [status(422), status(410), body(b"[]")])
async def test_end_that_cannot_be_told(tmp_path: Path, fault: Fault) -> None:
    """Where nothing helps the log says so, and the driver goes on."""
    bench = Bench(tmp_path, succeed)
    bench.gateway.faults["end", 0] = fault
    assert await bench.hold() is After.PULL
    assert bench.clock.now() == 0.0
    assert 1 <= len(bench.gateway.calls("end")) <= 2
    assert len(bench.named("run.end_failed")) == len(bench.gateway.calls("end"))


@pytest.mark.parametrize(
    "faults", [{("result", 1): late(200)}, {("end", number): swallowed for number in range(1, 12)}]
)
async def test_renewals_keep_their_pace(tmp_path: Path, faults: dict[tuple[str, int], Fault]) -> None:
    """While an upload or an end takes its time renewals go on, until the end is acknowledged."""
    bench = Bench(tmp_path, succeed, run=NO_DEADLINE | {"lease_seconds": 9})
    bench.gateway.faults |= faults
    assert await bench.hold() is After.PULL
    assert bench.gateway.ends == [COMPLETED]
    assert bench.clock.now() > 60
    assert longest_gap(bench, bench.clock.now()) <= 3.4


async def test_renewals_keep_their_pace_while_stopping(tmp_path: Path) -> None:
    """After SIGTERM renewals go on while the result and the end are told."""
    bench = Bench(tmp_path, work_on, run=NO_DEADLINE | {"lease_seconds": 6})
    bench.gateway.faults |= {("result", 1): late(12), ("end", 1): late(3)}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.hold)
        await bench.clock.sleep(30)
        bench.stop.ask()
    assert [(end.outcome, end.exit) for end in bench.gateway.ends] == [("INTERRUPTED", 143)]
    assert 44 <= bench.clock.now() <= 48
    assert longest_gap(bench, bench.clock.now()) <= 2.3


@pytest.mark.parametrize("faults", [{("end", 1): swallowed}, {("end", 1): swallowed, ("end", 2): swallowed}])
async def test_swallowed_end_while_stopping(tmp_path: Path, faults: dict[tuple[str, int], Fault]) -> None:
    """One connection that swallows the end does not use up the grace."""
    bench = Bench(tmp_path, work_on)
    bench.gateway.faults |= faults
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.hold)
        await bench.clock.sleep(5)
        bench.stop.ask()
    assert [end.outcome for end in bench.gateway.ends] == ["INTERRUPTED"]
    assert bench.clock.now() < 30.0


async def test_second_signal_while_ending(tmp_path: Path) -> None:
    """A driver in a hurry tries once more, and leaves an end that nobody takes."""
    bench = Bench(tmp_path, work_on)
    bench.gateway.faults["end", 0] = swallowed
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.hold)
        await bench.clock.sleep(5)
        bench.stop.ask()
        await bench.clock.sleep(1)
        bench.stop.ask()
    assert bench.clock.now() <= 5.0 + 25.0 / 3 + 1.0
    assert len(bench.named("run.end_failed")) == 1


def suspends(bench: Bench, name: str) -> Callable[[str], None]:
    return lambda call: bench.clock.suspend(3600) if call == name else None


@pytest.mark.parametrize("call", ["result", "end"])
async def test_suspended_while_connecting(tmp_path: Path, call: str) -> None:
    """A write whose connection took until after a suspend does not leave."""
    bench = Bench(tmp_path, succeed, run=NO_DEADLINE)
    bench.gateway.connecting = suspends(bench, call)
    assert await bench.hold() is After.PULL
    assert bench.gateway.calls(call) == []
    assert bench.gateway.ends == []


async def test_suspended_for_less_than_the_lease(tmp_path: Path) -> None:
    """A suspend that leaves the lease whole changes nothing."""
    bench = Bench(tmp_path, succeed, run=NO_DEADLINE)
    bench.gateway.connecting = lambda call: bench.clock.suspend(40) if call == "result" else None
    assert await bench.hold() is After.PULL
    assert bench.gateway.ends == [COMPLETED]
