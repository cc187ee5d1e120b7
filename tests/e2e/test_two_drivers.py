"""Two drivers on one subject, while one of them is suspended or stopped for longer than its lease."""

import signal
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import anyio
import psutil
import pytest

from driver.stub.server import gateway_clock, running_stub
from tests.e2e.driving import Driver, driving, gone, processes_below, scenario, shell, stop_signal

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(120)]

LEASE = 8.0
GUARD = LEASE / 4
RUNS = 6
# A program has ten seconds to end.
SHORT_LEASE = 6.0


async def test_one_subject(tmp_path: Path) -> None:
    """No run is worked on by both for longer than the guard time, and each is completed once."""
    go = tmp_path / "go"
    program = shell(f"until [ -e {go} ]; do sleep 0.05; done; printf {{}} > out/result.json")
    workspaces = [tmp_path / "a", tmp_path / "b"]
    terms = [{"attempts": 3, "lease_seconds": LEASE, "retry_seconds": 0} for _ in range(RUNS)]
    async with (
        running_stub(scenario(run=terms)) as stub,
        gone(tmp_path),
        driving(stub, workspaces[0], DRIVER_PROGRAM_REVIEW=program) as one,
        driving(stub, workspaces[1], DRIVER_PROGRAM_REVIEW=program) as other,
    ):
        with anyio.fail_after(60):
            first, second = await holder_first(one, other)
            await first.wait_event("program.started", program="sh")
            frozen = freeze(first)
            await stub.wait_for_event("run.requeued", because="LOST")
            await second.wait_event("program.started", program="sh", **{"run.id": "run-1"})
            woken = datetime.now(UTC)
            for process in frozen:
                with suppress(psutil.NoSuchProcess):  # what it has ended already
                    process.send_signal(signal.SIGCONT)
            left = await first.wait_event("program.ended", program="sh", **{"run.id": "run-1"})
            assert second.named("program.ended", program="sh") == []
            assert (moment(left) - woken).total_seconds() < GUARD
            await first.wait_event("claim.lost", **{"run.id": "run-1"})
            go.touch()
            await stub.wait_ended()
        for driver in (first, second):
            stop_signal(driver)
            assert await driver.exit() == 0
        assert processes_below(tmp_path) == []
    runs = [f"run-{number}" for number in range(1, RUNS + 1)]
    assert [(run, end.outcome) for run, _, end in stub.state.ends] == [(run, "COMPLETED") for run in runs]
    assert [(result.run, result.exit) for result in stub.state.results] == [(run, 0) for run in runs]
    # One after the other, whoever it was; the first one of `first` is the one that was suspended.
    work = sorted(spans(first)[1:] + spans(second))
    assert len(work) == RUNS
    assert all(before[1] <= after[0] for before, after in pairwise(work))


async def test_a_stop_that_takes_longer_than_a_lease(tmp_path: Path) -> None:
    """Renewals go on while a program takes its time to end: the other driver gets it handed back."""
    go = tmp_path / "go"
    program = f"trap '' TERM; echo ready; until [ -e {go} ]; do sleep 0.05; done; printf {{}} > out/result.json"
    settings = {"DRIVER_PROGRAM_REVIEW": shell(program), "DRIVER_STOP_GRACE": "60"}
    async with (
        running_stub(scenario(run={"attempts": 3, "lease_seconds": SHORT_LEASE})) as stub,
        gone(tmp_path),
        driving(stub, tmp_path / "a", **settings) as one,
        driving(stub, tmp_path / "b", **settings) as other,
    ):
        with anyio.fail_after(60):
            first, second = await holder_first(one, other)
            await first.wait_event("program.output", text="ready")
            stop_signal(first)
            await first.wait_event("program.stopping")
            await stub.wait_for_event("run.renewed")
            later = gateway_clock() + timedelta(seconds=SHORT_LEASE)
            await stub.wait_for(lambda: stub.state.journal.named("run.renewed")[-1].time > later)
            go.touch()
            await stub.wait_ended()
        assert await first.exit() == 0
        stop_signal(second)
        assert await second.exit() == 0
    assert [(epoch, end.outcome) for _, epoch, end in stub.state.ends] == [(1, "INTERRUPTED"), (2, "COMPLETED")]
    assert [entry.fields["because"] for entry in stub.state.journal.named("run.requeued")] == ["INTERRUPTED"]
    ((_, stopped),), ((again, _),) = spans(first), spans(second)
    assert stopped < again


async def holder_first(one: Driver, other: Driver) -> tuple[Driver, Driver]:
    """The two drivers, the one that has pulled first."""
    found: list[tuple[Driver, Driver]] = []
    async with anyio.create_task_group() as tasks:

        async def look(driver: Driver, beside: Driver) -> None:
            await driver.wait_event("run.pulled")
            found.append((driver, beside))
            tasks.cancel_scope.cancel("there is one")

        tasks.start_soon(look, one, other)
        tasks.start_soon(look, other, one)
    return found[0]


def freeze(driver: Driver) -> list[psutil.Process]:
    """Stop the driver and all below it, as a suspended sandbox is; what has to go on for it to wake."""
    leader = psutil.Process(driver.process.pid)
    leader.suspend()
    frozen = [leader]
    while fresh := [child for child in leader.children(recursive=True) if child not in frozen]:
        for child in fresh:
            with suppress(psutil.NoSuchProcess):
                child.suspend()
        frozen += fresh
    return frozen


def moment(line: dict[str, str]) -> datetime:
    return datetime.fromisoformat(line["time"])


def spans(driver: Driver) -> list[tuple[datetime, datetime]]:
    """When its programs ran."""
    begins = map(moment, driver.named("program.started", program="sh"))
    ends = map(moment, driver.named("program.ended", program="sh"))
    return list(zip(begins, ends, strict=True))
