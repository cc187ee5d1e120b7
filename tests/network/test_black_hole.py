"""A gateway whose packets are all swallowed, in standing connections too: for less and for more than a lease."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from driver.stub.server import Stub, running_stub
from tests.e2e.driving import Driver, driving, files_of, processes_below, scenario, shell, stop_signal
from tests.network.sandbox_network import FAMILIES, Network, api_server, gateway, network

pytestmark = [pytest.mark.anyio, pytest.mark.netns, pytest.mark.slow]

LONGEST = 50.0
FAMILY = FAMILIES["IPv4"]
CLOSED = f"{FAMILY.match} {FAMILY.api} tcp dport 443 drop"


@pytest.fixture(scope="module")
def made() -> Iterator[Network]:
    with network() as found:
        yield found


@asynccontextmanager
async def held(made: Network, workspace: Path, program: str, **tables: Any) -> AsyncIterator[tuple[Stub, Driver]]:
    """A driver behind the packet filter that has a run in hand."""
    made.filter(CLOSED)
    settings = {
        "HEPHAESTUS_GATEWAY_URL": FAMILY.url,
        "DRIVER_ISOLATION_TARGET": f"{FAMILY.api}:443",
        "DRIVER_PROGRAM_REVIEW": shell(program),
    }
    async with running_stub(scenario(**tables)) as stub, gateway(made, FAMILY, stub):
        with api_server(made, FAMILY):
            async with driving(stub, workspace, command=made.command(), **settings) as driver:
                with anyio.fail_after(LONGEST):
                    yield stub, driver


async def test_less_than_a_lease(made: Network, tmp_path: Path) -> None:
    """The program goes on, the renewals get through again, and the same claim completes the run."""
    go = tmp_path / "go"
    program = f"echo ready; until [ -e {go} ]; do sleep 0.05; done; printf {{}} > out/result.json"
    async with held(made, tmp_path / "w", program, run={"attempts": 1, "lease_seconds": 10}) as (stub, driver):
        await driver.wait_event("program.output", text="ready")
        await stub.wait_for_event("run.renewed")
        made.black_hole(FAMILY, CLOSED)
        await driver.wait_event("lease.renewal_failed")
        swallowed = len(stub.state.journal.named("run.renewed"))
        made.filter(CLOSED)
        await stub.wait_for(lambda: len(stub.state.journal.named("run.renewed")) > swallowed)
        go.touch()
        await stub.wait_ended()
        stop_signal(driver)
        assert await driver.exit() == 0
    assert [(run, epoch, end.outcome) for run, epoch, end in stub.state.ends] == [("run-1", 1, "COMPLETED")]
    assert driver.named("claim.lost") == []
    assert files_of(stub)["out/result.json"] == b"{}"


UNTIL_STOPPED = 'if [ "$DRIVER_RUN_ATTEMPT" = 0 ]; then echo ready; sleep 600; fi; printf again > out/result.json'
DONE_AT_ONCE = 'printf "$DRIVER_RUN_ATTEMPT" > out/result.json'
AT = {
    "while the program runs": (UNTIL_STOPPED, "program.output", []),
    "while the result is sent": (DONE_AT_ONCE, "result.packed", [{"at": "result", "nth": 1, "what": "stall"}]),
}


@pytest.mark.parametrize("when", AT)
async def test_more_than_a_lease(made: Network, tmp_path: Path, when: str) -> None:
    """The claim is given up and its program gone before anybody else may have the run; then work is taken again."""
    program, event, faults = AT[when]
    workspace = tmp_path / "w"
    terms = {"attempts": 3, "lease_seconds": 8, "retry_seconds": 0}
    async with held(made, workspace, program, run=terms, fault=faults) as (stub, driver):
        await driver.wait_event(event)
        if faults:
            await stub.wait_for_event("request.received", call="result")
        made.black_hole(FAMILY, CLOSED)
        await driver.wait_event("lease.renewal_failed")
        (run,) = stub.state.runs
        granted = run.leased_until
        assert granted is not None
        given_up = await driver.wait_event("claim.lost")
        assert processes_below(workspace) == []
        assert datetime.fromisoformat(given_up["time"]) < granted
        await stub.wait_for_event("run.requeued", because="LOST")
        lost = stub.state.journal.named("run.requeued", because="LOST")[0].number
        made.filter(CLOSED)
        await stub.wait_ended()
        stop_signal(driver)
        assert await driver.exit() == 0
    assert given_up["reason"] == "no renewal succeeded for three quarters of the lease"
    assert [end.outcome for _, epoch, end in stub.state.ends if epoch > 1] == ["COMPLETED"]
    assert len(stub.state.ends) == 1
    assert {result.epoch for result in stub.state.results} == {run.epoch}
    late = [
        entry.fields["call"]
        for entry in stub.state.journal.entries
        if entry.number > lost and entry.event == "request.received" and entry.fields["epoch"] == 1
    ]
    # A renewal that had left may still arrive, as TCP sends it again; it writes nothing.
    assert set(late) <= {"renew"}
