"""The life of a driver: when it pulls, how long it pauses, and why it ends; on virtual time."""

import itertools
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest

from driver.gateway.wire import End
from driver.kind import HeldRun, Outcome
from driver.values import Target
from tests.driver.holding import Bench, Work, succeed, work_on
from tests.driver.memory_gateway import (
    Fault,
    Serve,
    afterwards,
    late,
    lost_reply,
    meanwhile,
    status,
    swallowed,
    unreachable,
)
from tests.virtual_time import BACKEND

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> object:
    return BACKEND


@pytest.fixture
def open_target() -> Iterator[Target]:
    """A target that every connection reaches."""
    with socket.socket() as target:
        target.bind(("127.0.0.1", 0))
        target.listen(1024)
        yield Target("127.0.0.1", target.getsockname()[1])


@pytest.fixture
def closed_target() -> Iterator[Target]:
    """A target that refuses every connection."""
    with socket.socket() as target:
        target.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        target.bind(("127.0.0.1", 0))
        yield Target("127.0.0.1", target.getsockname()[1])


@asynccontextmanager
async def looping(bench: Bench) -> AsyncIterator[list[int]]:
    """The driver lives beside the block, which is left when that is over."""
    codes: list[int] = []
    async with anyio.create_task_group() as tasks:

        async def loop() -> None:
            codes.append(await bench.loop())

        tasks.start_soon(loop)
        yield codes


def pulls(bench: Bench) -> list[float]:
    return [seen.at for seen in bench.gateway.calls("next")]


def gaps(moments: list[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(moments)]


NO_WORK = {"drives": [], "life_seconds": 1_000_000}


async def test_pulls_without_work(tmp_path: Path) -> None:
    """Pauses have full jitter below one second, growing to five, so that drivers do not pull in step."""
    bench = Bench(tmp_path, succeed)
    bench.gateway.faults["next", 0] = status(204)
    async with looping(bench):
        await bench.clock.sleep(600)
        bench.stop.ask()
    first, second, third, *later = gaps(pulls(bench))
    assert first <= 1
    assert second <= 2
    assert third <= 4
    assert max(later) <= 5
    assert 2.2 <= sum(later) / len(later) <= 2.8
    assert min(later) < 0.3
    assert bench.clock.now() == 600


async def test_a_run_resets_the_pause(tmp_path: Path) -> None:
    """After a run the driver looks for the next one soon."""
    bench = Bench(tmp_path, succeed)
    bench.gateway.faults |= {("next", number): status(204) for number in (1, 2, 3, 4, 5, 6, 7)}
    async with looping(bench):
        await bench.clock.sleep(60)
        bench.stop.ask()
    moments = pulls(bench)
    assert moments[8] == moments[7]
    assert moments[9] - moments[8] <= 1
    assert moments[10] - moments[9] <= 2


@pytest.mark.parametrize(("told", "least", "most"), [("7", 7.0, 7.0), ("0", 0.0, 1.0), ("soon", 0.0, 1.0)])
async def test_retry_after_of_no_work(tmp_path: Path, told: str, least: float, most: float) -> None:
    """The gateway may say when to come back; nothing that it says makes the driver pull without a pause."""
    bench = Bench(tmp_path, succeed)
    bench.gateway.faults["next", 0] = status(204, retry_after=told)
    async with looping(bench):
        await bench.clock.sleep(100)
        bench.stop.ask()
    assert least <= gaps(pulls(bench))[0] <= most
    assert len(pulls(bench)) <= 120


async def test_held_pulls(tmp_path: Path, closed_target: Target) -> None:
    """The first pull is answered at once; later ones may be held, and a pull that was held needs no pause."""
    bench = Bench(tmp_path, succeed, target=closed_target, sandbox=NO_WORK)
    bench.gateway.faults |= {("next", number): late(20) for number in range(2, 20)}
    async with looping(bench):
        await bench.clock.sleep(100)
        bench.stop.ask()
    preferred = [seen.headers.get("prefer") for seen in bench.gateway.calls("next")]
    assert preferred == [None, *["wait=20"] * (len(preferred) - 1)]
    assert gaps(pulls(bench))[1:] == pytest.approx([20.0] * (len(preferred) - 2))


async def test_reply_of_a_pull_is_lost(tmp_path: Path) -> None:
    """A claim that never arrived is nobody's until its lease is over; then the driver gets the next one."""
    bench = Bench(tmp_path, succeed)
    bench.gateway.faults["next", 1] = lost_reply
    async with looping(bench):
        await bench.clock.sleep(90)
        bench.stop.ask()
    assert [(run, epoch, end.outcome) for run, epoch, end in bench.gateway.state.ends] == [("run-1", 2, "COMPLETED")]
    assert bench.named("pull.failed")


@pytest.mark.parametrize(
    ("seconds", "calls"), [(50, ["renew", "context", "runtime", "result", "end"]), (70, ["renew"])]
)
async def test_suspended_while_a_claim_is_on_its_way(tmp_path: Path, seconds: int, calls: list[str]) -> None:
    """A lease counts from when its pull was sent: one that is old on its arrival is renewed before anything else."""
    bench = Bench(tmp_path, succeed)
    bench.gateway.faults["next", 1] = afterwards(lambda: bench.clock.suspend(seconds))
    async with looping(bench):
        await bench.clock.sleep(150)
        bench.stop.ask()
    assert [seen.call for seen in bench.gateway.seen if seen.epoch == 1] == calls


async def test_a_pull_that_is_held_for_longer_than_a_lease(tmp_path: Path) -> None:
    """What the gateway leases at the end of a held pull is worked on, however short its lease."""
    bench = Bench(tmp_path, succeed, run={"kind": "WORK", "lease_seconds": 3})

    async def held(serve: Serve) -> httpx.Response:
        await bench.clock.sleep(18)
        return await serve()

    bench.gateway.faults["next", 1] = held
    async with looping(bench):
        await bench.clock.sleep(20)
        bench.stop.ask()
    assert bench.gateway.ends == [End(outcome="COMPLETED", exit=0)]
    assert [seen.call for seen in bench.gateway.seen][:3] == ["next", "renew", "context"]


async def test_gateway_that_is_down(tmp_path: Path) -> None:
    """Failed pulls are tried again with back-off for as long as it takes, and then the work goes on."""
    bench = Bench(tmp_path, succeed)
    bench.gateway.faults |= {("next", number): unreachable for number in range(1, 30)}
    async with looping(bench) as codes:
        await bench.gateway.state.journal.wait_for(lambda: bool(bench.gateway.ends))
        bench.stop.ask()
    assert codes == [0]
    assert max(gaps(pulls(bench))[:28]) <= 30
    assert bench.gateway.ends == [End(outcome="COMPLETED", exit=0)]


@pytest.mark.parametrize("after", [0.0, 0.4])
async def test_stop_while_a_claim_is_on_its_way(tmp_path: Path, after: float) -> None:
    """A claim that arrives just after the stop is handed back, and nothing else is pulled."""
    bench = Bench(tmp_path, work_on)

    async def ask_and_wait(serve: Serve) -> httpx.Response:
        bench.stop.ask()
        return await late(after)(serve)

    bench.gateway.faults["next", 1] = ask_and_wait
    async with looping(bench) as codes:
        pass
    assert codes == [0]
    assert [end.outcome for end in bench.gateway.ends] == ["INTERRUPTED"]
    assert len(pulls(bench)) == 1


async def test_stop_while_the_rest_is_imported(tmp_path: Path) -> None:
    """A claim that came before all of the driver is imported is handed back once it is, whenever the stop was."""
    bench = Bench(tmp_path, work_on)
    bench.rest.ready = anyio.Event()
    bench.gateway.faults["next", 1] = afterwards(bench.stop.ask)
    async with looping(bench) as codes:
        await bench.clock.sleep(3)
        assert bench.gateway.ends == []
        bench.rest.ready.set()
    assert codes == [0]
    assert [end.outcome for end in bench.gateway.ends] == ["INTERRUPTED"]


async def test_stop_while_a_pull_hangs(tmp_path: Path) -> None:
    """A pull that brings nothing does not hold up a stop."""
    bench = Bench(tmp_path, succeed)
    bench.gateway.faults["next", 0] = swallowed
    async with looping(bench) as codes:
        await bench.clock.sleep(10)
        bench.stop.ask()
    assert codes == [0]
    assert bench.clock.now() == 10.5


@pytest.mark.parametrize("fault", [status(503, retry_after="3600"), status(204, retry_after="3600"), status(404)])
async def test_stop_during_a_pause(tmp_path: Path, fault: Fault) -> None:
    """A pause of any length ends with a stop."""
    bench = Bench(tmp_path, succeed)
    bench.gateway.faults["next", 0] = fault
    async with looping(bench) as codes:
        await bench.clock.sleep(3)
        bench.stop.ask()
    assert codes == [0]
    assert bench.clock.now() == 3.0


async def test_grace_is_over(tmp_path: Path) -> None:
    """Whatever hangs, the loop is over when the grace is."""
    bench = Bench(tmp_path, work_on)
    bench.gateway.faults |= {("result", 0): swallowed, ("end", 0): swallowed}
    async with looping(bench) as codes:
        await bench.clock.sleep(5)
        bench.stop.ask()
    assert codes == [0]
    assert bench.clock.now() == pytest.approx(30.0)


async def test_taken_back(tmp_path: Path) -> None:
    """After a 401 nothing more is asked, and the driver ends as if nothing had happened."""
    bench = Bench(tmp_path, succeed)
    bench.gateway.faults["next", 2] = status(401)
    async with looping(bench) as codes:
        pass
    assert codes == [0]
    assert bench.gateway.seen[-1].call == "next"
    assert bench.named("sandbox.taken_back")


async def test_claim_lost_pulls_again(tmp_path: Path) -> None:
    """A lost claim is not the end of the driver: the run comes again under a later epoch."""
    bench = Bench(tmp_path, succeed)
    bench.gateway.faults["context", 1] = meanwhile(lambda: bench.gateway.state.runs.take_away("run-1"))
    async with looping(bench):
        await bench.gateway.state.journal.wait_for(lambda: bool(bench.gateway.ends))
        bench.stop.ask()
    assert [(epoch, end.outcome) for _, epoch, end in bench.gateway.state.ends] == [(2, "COMPLETED")]


class TestUnisolated:
    """A driver whose network is open."""

    @pytest.mark.parametrize("fault", [status(204), status(404), status(401), status(409), status(200)])
    async def test_without_a_run(self, tmp_path: Path, open_target: Target, fault: Fault) -> None:
        """Where there is no run to refuse, the driver exits 77 after one more pull."""
        bench = Bench(tmp_path, succeed, target=open_target)
        bench.gateway.faults["next", 0] = status(204)
        async with looping(bench) as codes:
            await bench.clock.sleep(9)
            bench.gateway.faults["next", 0] = fault
        assert codes == [77]
        assert bench.clock.now() < 16
        found_at = bench.named("sandbox.unisolated")[0]["at"]
        assert len([at for at in pulls(bench) if at >= found_at]) == 1

    @pytest.mark.parametrize("fault", [unreachable, status(503), status(503, retry_after="3600")])
    async def test_unreachable_gateway(self, tmp_path: Path, open_target: Target, fault: Fault) -> None:
        """A gateway that never answers does not keep the driver: it exits 77 soon after the window."""
        bench = Bench(tmp_path, succeed, target=open_target)
        bench.gateway.faults["next", 0] = fault
        assert await bench.loop() == 77
        assert bench.clock.now() < 13
        assert bench.named("sandbox.unisolated")

    async def test_swallowing_gateway(self, tmp_path: Path, open_target: Target) -> None:
        """Nor does one that swallows every pull."""
        bench = Bench(tmp_path, succeed, target=open_target)
        bench.gateway.faults["next", 0] = swallowed
        assert await bench.loop() == 77
        assert bench.clock.now() < 61

    async def test_with_a_run(self, tmp_path: Path, open_target: Target) -> None:
        """The last pull comes at once, even in a long pause; a run that it brings is refused, and no kind starts."""
        bench = Bench(tmp_path, succeed, target=open_target)
        bench.gateway.faults["next", 1] = status(204, retry_after="3600")
        assert await bench.loop() == 77
        assert bench.clock.now() < 10.5
        assert [end.outcome for end in bench.gateway.ends] == ["UNISOLATED"]
        assert bench.gateway.calls("context") == []

    async def test_end_that_cannot_be_told(self, tmp_path: Path, open_target: Target) -> None:
        """The exit is 77 too where the gateway never hears of it."""
        bench = Bench(tmp_path, succeed, target=open_target)
        bench.gateway.faults["end", 0] = status(401)
        assert await bench.loop() == 77

    async def test_grace_is_over(self, tmp_path: Path, closed_target: Target) -> None:
        """Nor does a grace that is not enough to tell it."""
        bench = Bench(tmp_path, work_on, target=closed_target)
        bench.gateway.faults["end", 0] = swallowed
        async with looping(bench) as codes:
            await bench.clock.sleep(20)
            with socket.create_server((closed_target.host, closed_target.port), reuse_port=True):
                await bench.clock.sleep(20)
            bench.stop.ask()
        assert codes == [77]

    async def test_stopped_meanwhile(self, tmp_path: Path, open_target: Target) -> None:
        """A stop does not hide it."""
        bench = Bench(tmp_path, succeed, target=open_target)
        bench.gateway.faults["end", 1] = afterwards(bench.stop.ask)
        assert await bench.loop() == 77


class TestFaults:
    """Faults of the driver itself."""

    @staticmethod
    def failing(*epochs: int) -> Work:
        async def work(held: HeldRun) -> Outcome:
            if held.run.epoch in epochs:
                raise ZeroDivisionError
            return Outcome("FAILED", exit=1)

        return work

    async def test_three_in_a_row(self, tmp_path: Path) -> None:
        """Three runs in a row that end in a fault end the driver with 70."""
        bench = Bench(tmp_path, self.failing(1, 2, 3))
        assert await bench.loop() == 70
        assert [end.outcome for end in bench.gateway.ends] == ["FAILED"] * 3
        assert bench.named("driver.faults")[0]["faults"] == 3

    async def test_a_good_run_between(self, tmp_path: Path) -> None:
        """A run without a fault begins the count anew; pulls without work do not."""
        bench = Bench(tmp_path, self.failing(1, 2, 4, 5, 6))
        bench.gateway.faults |= {("next", 2): status(204), ("next", 7): status(204)}
        assert await bench.loop() == 70
        assert bench.gateway.run.epoch == 6

    @pytest.mark.parametrize("fault", [status(404), status(409), status(410), status(200)])
    async def test_pulls_that_are_refused(self, tmp_path: Path, fault: Fault) -> None:
        """So do three pulls in a row that the gateway refuses for good."""
        bench = Bench(tmp_path, succeed)
        bench.gateway.faults["next", 0] = fault
        assert await bench.loop() == 70
        assert len(pulls(bench)) == 3
        assert bench.clock.now() == pytest.approx(15.0)

    async def test_pulls_that_are_refused_now_and_then(self, tmp_path: Path) -> None:
        """A pull that is answered begins that count anew."""
        bench = Bench(tmp_path, succeed)
        bench.gateway.faults |= {("next", number): status(404 if number % 3 else 204) for number in range(1, 30)}
        async with looping(bench) as codes:
            await bench.clock.sleep(100)
            bench.stop.ask()
        assert codes == [0]


async def test_one_run_at_a_time(tmp_path: Path) -> None:
    """While a run is held nothing is pulled."""
    bench = Bench(tmp_path, work_on, run=[{"kind": "WORK", "work_seconds": 100}, {"kind": "WORK"}])
    async with looping(bench):
        await bench.clock.sleep(99)
        assert len(pulls(bench)) == 1
        bench.stop.ask()
