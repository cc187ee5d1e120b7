"""The rooms that all runs share, and each pulled run in them. Imported while the first pull is out (driver.loading)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from driver.door.permits import Budgets, ParsingPermit, Storage, TransportPermits
from driver.front import After, Front
from driver.gateway.client import GatewayClient
from driver.gateway.pull import Pulled
from driver.held import Claimed, Rooms
from driver.holder import RunHolder
from driver.isolation import IsolationGate
from driver.lease import Loss
from driver.process import landlock
from driver.stop import Stop

_NO_LANDLOCK: Final = (
    "this kernel has no Landlock, or it is switched off, so programs can write wherever their user can: "
    "use a kernel from 5.13 on, and a read-only root file system"
)


class Holding:
    """Holds one run after the other."""

    def __init__(self, rooms: Rooms, gate: IsolationGate, stop: Stop) -> None:
        self._rooms = rooms
        self._gate = gate
        self._stop = stop
        self._claimed: Claimed | None = None

    async def hold(self, pulled: Pulled) -> After:
        """Bring a run to its end, or give it up."""
        claimed = self._claimed = Claimed(self._rooms, pulled, self._stop)
        claimed.log.info(
            "run.pulled",
            attempt=claimed.run.attempt,
            lease_seconds=claimed.lease.seconds,
            deadline_seconds=pulled.claim.deadline_seconds,
        )
        return await RunHolder(self._rooms, claimed, self._gate, self._stop).hold()

    @property
    def unisolated(self) -> bool:
        """Whether the last run has found that the network policy does not hold."""
        return self._claimed is not None and self._claimed.loss is Loss.UNISOLATED


@asynccontextmanager
async def open_holding(front: Front) -> AsyncIterator[Holding]:
    """The rooms, put together; the connections for calls about runs are closed when the block is left."""
    settings = front.settings
    gateway = GatewayClient(settings.gateway_url, settings.token, verify=front.verify, on_answer=front.answered)
    async with gateway:
        rooms = Rooms(
            settings=settings,
            gateway=gateway,
            verify=front.verify,
            budgets=Budgets(
                TransportPermits(settings.model.transports, settings.model.queue, settings.model.wait),
                ParsingPermit(),
                Storage(settings.model.storage),
            ),
            children=front.children,
            load_kind=front.kinds.make,
            clock=front.clock,
            rng=front.rng,
            log=front.log,
        )
        if not landlock.version():
            front.log.warning("program.unconfined", reason=_NO_LANDLOCK)
        yield Holding(rooms, front.gate, front.stop)
