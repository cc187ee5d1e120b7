"""The gate's table in real networks: the real entrypoint behind a real packet filter, in both families."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from driver.stub.server import Stub, running_stub
from tests.e2e.driving import UNFINISHED, Driver, driving, processes_below, scenario, shell, stop_signal
from tests.network.sandbox_network import FAMILIES, Family, Network, api_server, gateway, network

pytestmark = [pytest.mark.anyio, pytest.mark.netns, pytest.mark.slow]

LONGEST = 45.0
"""Seconds for what a test waits for; below the time that a test has, so that it is the wait that fails."""

DONE = shell("mkdir -p out && printf '{}' > out/result.json")


@pytest.fixture(scope="module")
def made() -> Iterator[Network]:
    with network() as found:
        yield found


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@dataclass
class Sandbox:
    """A driver in its network, and the node's filter."""

    driver: Driver
    stub: Stub
    network: Network
    family: Family

    async def outcome(self) -> str | None:
        """How its one run ended at the gateway."""
        await self.stub.wait_ended()
        (run,) = self.stub.state.runs
        return run.outcome

    async def stopped(self) -> int:
        """Stop it, for its exit code."""
        stop_signal(self.driver)
        return await self.driver.exit()


def api(family: Family, verdict: str) -> str:
    """A rule about the API Service."""
    return f"{family.match} {family.api} tcp dport 443 {verdict}"


def way(family: Family, verdict: str) -> str:
    """A rule about the gateway."""
    return f"{family.match} {family.gateway} tcp dport 8080 {verdict}"


@asynccontextmanager
async def sandbox(
    made: Network, family: Family, workspace: Path, *rules: str, window: str = "10", program: str = DONE
) -> AsyncIterator[Sandbox]:
    """A driver that finds these rules when it starts, and has one review to do."""
    made.filter(*rules)
    settings = {
        "HEPHAESTUS_GATEWAY_URL": family.url,
        "DRIVER_ISOLATION_TARGET": "",
        "KUBERNETES_SERVICE_HOST": family.api,
        "KUBERNETES_SERVICE_PORT": "443",
        "DRIVER_ISOLATION_WINDOW": window,
        "DRIVER_PROGRAM_REVIEW": program,
    }
    async with running_stub(scenario()) as stub, gateway(made, family, stub):
        with api_server(made, family):
            async with driving(stub, workspace, command=made.command(), **settings) as driver:
                with anyio.fail_after(LONGEST):
                    yield Sandbox(driver, stub, made, family)


CLOSED = {
    "reset-IPv4": ("reject with tcp reset", "refused"),
    "reset-IPv6": ("reject with tcp reset", "refused"),
    "prohibited-IPv4": ("reject with icmp type admin-prohibited", "host_unreachable"),
    "prohibited-IPv6": ("reject with icmpv6 type admin-prohibited", "prohibited"),
    "unreachable-IPv4": ("reject with icmp type net-unreachable", "net_unreachable"),
    "unreachable-IPv6": ("reject with icmpv6 type addr-unreachable", "host_unreachable"),
    "dropped-IPv4": ("drop", "timed_out"),
    "dropped-IPv6": ("drop", "timed_out"),
}


@pytest.mark.parametrize("row", CLOSED)
async def test_closed(made: Network, tmp_path: Path, row: str) -> None:
    """However a policy closes the API Service, the gate passes and the run is done."""
    family = FAMILIES[row.partition("-")[2]]
    verdict, how = CLOSED[row]
    async with sandbox(made, family, tmp_path, api(family, verdict)) as found:
        passed = await found.driver.wait_event("gate.passed")
        assert passed["how"] == how
        assert await found.outcome() == "COMPLETED"
        assert await found.stopped() == 0
    assert_gate_first(found.driver)


async def test_open_for_three_seconds(made: Network, family: Family, tmp_path: Path) -> None:
    """A policy that comes late is waited for with the run in hand, and nothing of it starts before."""
    async with sandbox(made, family, tmp_path, window="60") as found:
        await found.driver.wait_event("run.pulled")
        await anyio.sleep(3)  # the row is about a time
        assert found.driver.named("gate.passed") == found.driver.named("program.started") == []
        made.filter(api(family, "drop"))
        passed = await found.driver.wait_event("gate.passed")
        assert (passed["how"], passed["probes"] > 1) == ("timed_out", True)
        assert passed["seconds"] >= 3
        assert await found.outcome() == "COMPLETED"
        assert await found.stopped() == 0
    assert_gate_first(found.driver)


async def test_open_for_ever(made: Network, family: Family, tmp_path: Path) -> None:
    """Without a policy the run is handed back unisolated, nothing was done of it, and the exit is 77."""
    async with sandbox(made, family, tmp_path, window="2") as found:
        assert await found.driver.exit() == 77
        # The gateway hands it to another sandbox.
        assert [run.state for run in found.stub.state.runs] == ["QUEUED"]
    assert [line["outcome"] for line in found.driver.named("run.ended")] == ["UNISOLATED"]
    # Once of the sandbox, and once of the run that it held.
    told = found.driver.named("sandbox.unisolated", level="error")
    assert [line.get("run.id") for line in told] == [None, "run-1"]
    assert all("opens (opened)" in line["error"] for line in told)
    assert found.driver.named("gate.passed") == found.driver.named("program.started") == []


async def test_gateway_late(made: Network, family: Family, tmp_path: Path) -> None:
    """While the gateway is closed too, a closed API Service proves nothing; once it answers, the gate passes."""
    async with sandbox(made, family, tmp_path, api(family, "drop"), way(family, "drop")) as found:
        waiting = await found.driver.wait_event("gate.waiting")
        assert "no network yet" in waiting["why"]
        assert found.driver.named("gate.passed") == []
        made.filter(api(family, "drop"))
        await found.driver.wait_event("gate.passed")
        assert await found.outcome() == "COMPLETED"
        assert await found.stopped() == 0
    assert_gate_first(found.driver)


@pytest.mark.parametrize("verdict", ["drop", "reject with tcp reset"])
async def test_gateway_never(made: Network, family: Family, tmp_path: Path, verdict: str) -> None:
    """Without a gateway it goes on trying for longer than the window, says so, and stops when it is told to."""
    rules = [api(family, verdict), way(family, verdict)]
    async with sandbox(made, family, tmp_path, *rules, window="1") as found:
        await found.driver.wait_event("gate.waiting")
        assert await found.stopped() == 0
        assert [run.state for run in found.stub.state.runs] == ["QUEUED"]
    assert found.driver.named("gate.passed") == found.driver.named("sandbox.unisolated") == []


async def test_open_without_a_gateway(made: Network, family: Family, tmp_path: Path) -> None:
    """An open API Service is unisolated even where nobody can be told: the log and the exit say it."""
    async with sandbox(made, family, tmp_path, way(family, "reject with tcp reset"), window="1") as found:
        assert await found.driver.exit() == 77
    assert len(found.driver.named("sandbox.unisolated")) == 1


async def test_policy_removed_in_mid_run(made: Network, family: Family, tmp_path: Path) -> None:
    """The watch sees it, the program is ended at once, the run is told unisolated, and the exit is 77."""
    async with sandbox(made, family, tmp_path, api(family, "drop"), program=shell(UNFINISHED)) as found:
        await found.driver.wait_event("program.output", text="ready")
        made.filter()
        assert await found.driver.exit() == 77
        assert processes_below(tmp_path) == []
    assert [line["outcome"] for line in found.driver.named("run.ended")] == ["UNISOLATED"]
    assert len(found.driver.named("gate.passed")) == len(found.driver.named("sandbox.unisolated")) == 1


def assert_gate_first(driver: Driver) -> None:
    """No program started, and no workspace was touched, before the gate had passed."""
    names = driver.names()
    assert not [name for name in names[: names.index("gate.passed")] if name.startswith(("program.", "workspace."))]
    assert "program.started" in names
