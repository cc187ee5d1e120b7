"""A driver's inside on virtual time: loop and holder as they are, kinds that a test writes, a gateway in memory."""

import json
import random
from collections.abc import Awaitable, Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import anyio
import httpx

from driver import settings
from driver.door.permits import Budgets, ParsingPermit, Storage, TransportPermits
from driver.errors import UnknownKind
from driver.exits import DriverExit
from driver.front import After, Front
from driver.gateway.client import GatewayClient
from driver.gateway.pull import PullClient, Pulled
from driver.held import Rooms
from driver.holding import Holding
from driver.isolation import IsolationGate
from driver.kind import HeldRun, Kind, Outcome
from driver.log import Log, render_json
from driver.loop import Loop
from driver.probe import Probe, probe
from driver.process.children import Children
from driver.registry import Kinds
from driver.secrets import Secrets
from driver.stop import Stop
from driver.values import Target
from tests.driver.memory_gateway import MemoryGateway
from tests.driver.over_httpx import OverHttpx
from tests.virtual_time import VirtualClock, wait_for_threads

Work = Callable[[HeldRun], Awaitable[Outcome]]


class WorkKind:
    """A kind that does what its test says."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def run(self, held: HeldRun) -> Outcome:
        return await self._work(held)


class Loaded:
    """A driver of which nothing has to be imported any more."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self.ready = anyio.Event()
        self.ready.set()

    @property
    def unisolated(self) -> bool:
        return self._holding.unisolated

    async def holding(self) -> Holding:
        return self._holding


class Bench:
    """One driver without a process. Made inside of a VirtualLoop."""

    def __init__(
        self,
        tmp_path: Path,
        work: Work,
        *,
        target: Target | None = None,
        probe: Callable[[Target, float], Awaitable[Probe]] = probe,
        clock: VirtualClock | None = None,
        gateway: MemoryGateway | None = None,
        network: httpx.AsyncBaseTransport | None = None,
        seed: int = 7,
        **tables: Any,
    ) -> None:
        wait_for_threads()
        (tmp_path / "out").mkdir(exist_ok=True)
        self.clock = clock or VirtualClock()
        self.gateway = gateway or MemoryGateway(self.clock, **tables)
        network = network or self.gateway
        self.records: list[dict[str, Any]] = []
        self.work = work
        self.stop = Stop(25.0, self.clock)
        self._answered = anyio.Event()
        read = settings.read(
            {
                "HEPHAESTUS_GATEWAY_URL": "http://10.0.0.7",
                "HEPHAESTUS_SANDBOX_TOKEN": self.gateway.token,
                "DRIVER_WORKSPACE": str(tmp_path),
                "DRIVER_ISOLATION": "off",
            }
        )
        log = Log(self._record, render=render_json, level="debug", secrets=Secrets(), wall=self.clock.wall)
        self.rooms = Rooms(
            settings=read,
            gateway=GatewayClient(
                read.gateway_url,
                read.token,
                verify=False,
                on_answer=self._answered.set,
                network=network,
            ),
            verify=False,
            budgets=Budgets(TransportPermits(32, 128, 30.0), ParsingPermit(), Storage(1 << 29)),
            children=Children(),
            load_kind=self._load_kind,
            clock=self.clock,
            rng=random.Random(seed),
            log=log,
        )
        self.gate = IsolationGate(
            settings.IsolationSettings(target, 0.3, 10.0),
            clock=self.clock,
            log=log,
            answered=self._answered,
            started=self.clock.now(),
            probe=probe,
        )

        self._pulls = PullClient(
            read.gateway_url,
            read.token,
            clock=self.clock,
            verify=False,
            on_answer=self._answered.set,
            network=OverHttpx(read.gateway_url, network),
        )
        self._holding = Holding(self.rooms, self.gate, self.stop)
        self.rest = Loaded(self._holding)

    def named(self, event: str) -> list[dict[str, Any]]:
        """The logged lines of that event."""
        return [record for record in self.records if record["event"] == event]

    async def hold(self, *, gate: bool = True) -> After:
        """Pull the run and hold it to its end. Without `gate` that stays undecided."""
        pulled = (await self._pulls.next(["WORK"])).read()
        assert isinstance(pulled, Pulled)
        if gate:
            await self.gate.pass_gate()
        return await self._holding.hold(pulled)

    async def loop(self) -> DriverExit:
        """The whole life of the driver."""
        front = Front(
            settings=self.rooms.settings,
            verify=False,
            answered=self._answered.set,
            kinds=Kinds([EntryPoint("WORK", "work:Work", "driver.kinds")]),
            children=self.rooms.children,
            gate=self.gate,
            stop=self.stop,
            clock=self.clock,
            rng=self.rooms.rng,
            log=self.rooms.log,
        )
        return await Loop(front, self._pulls, self.rest).run()

    def _record(self, line: str) -> None:
        self.records.append({"at": self.clock.now(), **json.loads(line)})

    async def _load_kind(self, name: str) -> Kind:
        if name != "WORK":
            raise UnknownKind(f"no runner is installed for kind {name}")
        return WorkKind(self.work)


async def succeed(held: HeldRun) -> Outcome:
    """Deliver what is there, as a program that ended with 0 would have it."""
    await held.results.deliver(0)
    return Outcome("COMPLETED", exit=0)


async def work_on(held: HeldRun) -> Outcome:
    """Work until the work is stopped, then deliver what is there."""
    with held.work() as work:
        await anyio.sleep_forever()
    assert work.stopped is not None
    await held.results.deliver(work.stopped.exit)
    return Outcome("FAILED", exit=work.stopped.exit, reason=f"stopped: {work.stopped.value}")


async def stay(held: HeldRun) -> Outcome:
    """Never end, whatever becomes of the work."""
    await anyio.sleep_forever()
    raise AssertionError
