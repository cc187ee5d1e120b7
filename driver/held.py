"""What a kind is given, put together from the rooms of the driver."""

import math
import os
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from driver.clock import Clock
from driver.door.permits import Budgets
from driver.door.server import Door, open_door
from driver.door.upstream import Upstream
from driver.errors import ContractError
from driver.gateway.answer import USER_AGENT
from driver.gateway.client import GatewayClient, RunCalls
from driver.gateway.pull import Pulled
from driver.gateway.retries import Retries
from driver.gateway.retry import error_for
from driver.gateway.wire import CONTRACT, Context, Run, Runtime
from driver.kind import BundledPrograms, Kind
from driver.layout import Layout
from driver.lease import LeaseState, Loss, loss_for
from driver.log import Log
from driver.process.children import Children
from driver.process.environment import DoorAddress, ProgramFacts
from driver.process.limits import ProgramLimits
from driver.process.programs import ProgramRunner
from driver.result import ResultDelivery
from driver.settings import Settings
from driver.stop import Stop
from driver.work import Section, WorkSections
from driver.workspace.prepare import RunWorkspace
from driver.workspace.standing import Standing

CALL_SECONDS: Final = 600.0
_CLOSING_SECONDS: Final = 300.0
_LONGEST_PROGRAM_GRACE: Final = 10.0
_PROGRAM_SHARE_OF_GRACE: Final = 0.4
_PROGRAM_SHARE_OF_RESERVE: Final = 0.25
# A loss that says more about the sandbox outweighs one that came before it.
_WEIGHTS: Final = {Loss.UNISOLATED: 2, Loss.TOKEN_REJECTED: 1}


@dataclass(frozen=True)
class Rooms:
    """What all runs of one driver share. `load_kind` is the `make` of driver.registry.Kinds."""

    settings: Settings
    gateway: GatewayClient
    verify: ssl.SSLContext | bool
    budgets: Budgets
    children: Children
    load_kind: Callable[[str], Awaitable[Kind]]
    clock: Clock
    rng: random.Random
    log: Log
    standing: Standing = field(default_factory=Standing)


class Claimed:
    """What is known of one claim while it is held; plain state."""

    def __init__(self, rooms: Rooms, pulled: Pulled, stop: Stop) -> None:
        run = pulled.claim.run
        self.run: Run = run
        self.lease = LeaseState(pulled.claim, pulled.sent_at)
        self.log = rooms.log.bind(
            {"run.id": run.id, "run.epoch": run.epoch, "run.kind": run.kind, "subject.key": run.subject}
        )
        self.calls: RunCalls = rooms.gateway.for_run(run, self.require_current)
        self.retries = Retries(rooms.clock, rooms.rng, self.log, until=self._last_try)
        self.work = WorkSections()
        self.loss: Loss | None = None
        self._clock = rooms.clock
        self._stop = stop

    def require_current(self) -> None:
        """The fence before each write. Raises ClaimInDoubt."""
        self.lease.require_current(self._clock.now())

    def lose(self, loss: Loss) -> None:
        """Note why the claim is over, or may only be ended. The first loss stays, unless the new one outweighs it."""
        if self.loss is None or _WEIGHTS.get(loss, 0) > _WEIGHTS.get(self.loss, 0):
            self.loss = loss

    def seconds_left(self) -> float:
        """Seconds until the deadline or the end of the driver, whichever is first."""
        return self._last_try() - self._clock.now()

    def _last_try(self) -> float:
        return min(_or_never(self.lease.deadline), _or_never(self._stop.ends_at))

    def program_grace(self) -> float:
        """Seconds between SIGTERM and SIGKILL for a program that is stopped now.

        None for a claim that is lost; else a share of what is left, so that the upload and the end still fit.
        """
        if self.loss is not None or self._stop.hurried:
            return 0.0
        left = _or_never(self._stop.ends_at) - self._clock.now()
        share = left * _PROGRAM_SHARE_OF_GRACE
        if self.lease.deadline is not None:
            share = min(share, (self.lease.deadline - self._clock.now()) * _PROGRAM_SHARE_OF_RESERVE)
        return max(0.0, min(share, _LONGEST_PROGRAM_GRACE))


class Held:
    """Implements driver.kind.HeldRun."""

    def __init__(self, rooms: Rooms, claimed: Claimed, context: Context, lose: Callable[[Loss], None]) -> None:
        self.run = claimed.run
        self.context = context
        self.log = claimed.log
        self._rooms = rooms
        self._claimed = claimed
        self._lose = lose
        self._runtime: Runtime | None = None
        self._door: Door | None = None
        self._report: Mapping[str, Any] = {}
        self._work_ends_at = rooms.clock.now() + context.work_seconds
        settings = rooms.settings
        layout = Layout(settings.workspace)
        self.workspace = RunWorkspace(
            layout,
            runtime=self.runtime,
            open_archive=claimed.calls.workspace,
            log=self.log,
            clock=rooms.clock,
            rng=rooms.rng,
            standing=rooms.standing,
        )
        self.programs = ProgramRunner(
            ProgramFacts(
                run=self.run,
                model=context.model.id,
                layout=layout,
                work_seconds=self.work_seconds,
                host=os.environ,
            ),
            limits=ProgramLimits(settings.program.memory, settings.program.disk, settings.program.processes),
            children=rooms.children,
            door=self._door_address,
            grace=claimed.program_grace,
            clock=rooms.clock,
            log=self.log,
            hidden=() if settings.token_file is None else (settings.token_file,),
        )
        self.results = ResultDelivery(
            layout.out,
            claimed.calls,
            claimed.retries,
            runtime=self.runtime,
            report=lambda: self._report,
            clock=rooms.clock,
            log=self.log,
        )
        self.bundled = BundledPrograms(
            review=settings.program.review,
            compose=settings.program.compose,
            digest=settings.program.digest,
            session_heap=settings.program.session_heap,
            session_size=settings.program.session_size,
        )

    async def runtime(self) -> Runtime:
        """The run's Runtime, asked for once. Raises ContractError for another version of the protocol."""
        if self._runtime is None:
            runtime = await self._claimed.retries("runtime", self._claimed.calls.runtime, within=CALL_SECONDS)
            if runtime.contract != CONTRACT:
                raise ContractError(f"runtime: contract: is {runtime.contract}, and this driver speaks {CONTRACT}")
            self._runtime = runtime
        return self._runtime

    @asynccontextmanager
    async def door(self) -> AsyncIterator[None]:
        """See driver.kind.HeldRun; what the programs did with the model goes into the result's report."""
        rooms = self._rooms
        upstream = Upstream(
            rooms.settings.gateway_url,
            rooms.settings.token,
            verify=rooms.verify,
            run_id=self.run.id,
            epoch=self.run.epoch,
            user_agent=USER_AGENT,
            guard=self._claimed.require_current,
        )
        async with open_door(
            upstream,
            model=self.context.model.id,
            budgets=rooms.budgets,
            log=self.log,
            clock=rooms.clock,
            on_claim_refused=self._claim_refused,
        ) as door:
            self._door = door
            self.log.info("door.opened", url=door.url)
            try:
                yield
            finally:
                self._door = None
                self._report = door.statistics()
                self.log.info("door.closed", **self._report)

    def _claim_refused(self, status: int) -> None:
        self._lose(loss_for(error_for("model", status, {}, None)) or Loss.CLAIM_LOST)

    def _door_address(self) -> DoorAddress | None:
        return DoorAddress(self._door.url, self._door.key) if self._door else None

    def work(self) -> AbstractContextManager[Section]:
        return self._claimed.work.section()

    @property
    def work_deadline(self) -> float:
        """When the work is stopped: the deadline less its reserve, or the context's work time, if earlier."""
        return min(self._work_ends_at, _or_never(self._claimed.lease.work_deadline))

    @property
    def closing_seconds(self) -> float:
        """How long a kind may take to deliver what its work left, once that is over: the upload and some more."""
        upload = CALL_SECONDS if self._runtime is None else self._runtime.upload_seconds
        return upload + _CLOSING_SECONDS

    def work_seconds(self) -> float:
        return max(0.0, self.work_deadline - self._rooms.clock.now())


def _or_never(moment: float | None) -> float:
    return math.inf if moment is None else moment
