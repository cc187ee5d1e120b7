"""The life of a driver: prove the isolation, pull a run, hold it to its end, pull the next."""

import random
from typing import Final, Protocol

import anyio

from driver.errors import GatewayError, GatewayUnavailable, TokenRejected, Unisolated
from driver.exits import DriverExit
from driver.front import After, Front
from driver.gateway.pull import NoWork, PullClient, Pulled, Told
from driver.gateway.retry import backoff, pause_after

FAULTS_IN_A_ROW: Final = 3
# What a gateway may hold a pull for, so that a driver without work is quiet.
HELD_PULL_SECONDS: Final = 20.0
# A pull whose answer is on its way when the driver is stopped may carry a claim, which is then handed back.
_PULL_STOP_SECONDS: Final = 0.5
# How often, and for how long, a driver that is not isolated tries to get hold of the run it must refuse.
_UNISOLATED_PULLS: Final = 3
_REFUSAL_SECONDS: Final = 30.0


class IdlePause:
    """Seconds between pulls while there is no work: from `least`, doubling up to `most`, with full jitter."""

    def __init__(self, least: float, most: float, rng: random.Random) -> None:
        self._least = least
        self._most = most
        self._rng = rng
        self._bound = least

    def reset(self) -> None:
        self._bound = self._least

    def next(self) -> float:
        bound = self._bound
        self._bound = min(self._bound * 2, self._most)
        return self._rng.uniform(0.0, bound)


class Holding(Protocol):
    """Holds one run after the other: a driver.holding.Holding."""

    async def hold(self, pulled: Pulled) -> After: ...


class Rest(Protocol):
    """The rest of the driver, which may still have to be imported: a driver.loading.Loading."""

    @property
    def ready(self) -> anyio.Event: ...

    @property
    def unisolated(self) -> bool: ...

    async def holding(self) -> Holding: ...


class Loop:
    """Pulls and holds one run at a time; used once."""

    def __init__(self, front: Front, pulls: PullClient, rest: Rest) -> None:
        self._front = front
        self._pulls = pulls
        self._rest = rest
        self._gate = front.gate
        self._stop = front.stop
        self._log = front.log
        self._pause = IdlePause(front.settings.poll_min, front.settings.poll_max, front.rng)
        self._waiting = anyio.CancelScope()
        self._failed_pulls = 0
        self._refused_pulls = 0
        self._faults = 0

    async def run(self) -> DriverExit:
        """Until the driver is stopped, taken back, not isolated or broken: why, as an exit code."""
        code = DriverExit.OK
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._pass_gate)
            tasks.start_soon(self._cancel_at_end_of_grace, tasks.cancel_scope)
            code = await self._pull_runs()
            tasks.cancel_scope.cancel("the loop is over")
        return DriverExit.UNISOLATED if self._unisolated else code

    @property
    def _unisolated(self) -> bool:
        """Whether the network policy does not hold, as the gate or a run has found."""
        return self._gate.failed or self._rest.unisolated

    async def _pass_gate(self) -> None:
        try:
            await self._gate.pass_gate()
        except Unisolated as error:
            self._log.error("sandbox.unisolated", error=str(error))
            self._waiting.cancel("the gate has failed")

    async def _cancel_at_end_of_grace(self, scope: anyio.CancelScope) -> None:
        await self._stop.wait_end()
        self._log.error("driver.grace_over")
        scope.cancel("the grace is over")

    async def _pull_runs(self) -> DriverExit:
        while not self._stop.asked:
            if self._gate.failed:
                return await self._refuse_run()
            if (code := await self._pull_one()) is not None:
                return code
            if max(self._faults, self._refused_pulls) >= FAULTS_IN_A_ROW:
                self._log.error("driver.faults", faults=self._faults + self._refused_pulls)
                return DriverExit.INTERNAL
        return DriverExit.OK

    async def _pull_one(self) -> DriverExit | None:
        """One pull and what comes of it: a run held to its end, or a pause. An exit code ends the loop."""
        began = self._front.clock.now()
        try:
            pulled = await self._pull()
        except TokenRejected:
            return self._taken_back()
        except GatewayUnavailable as error:
            self._failed_pulls += 1
            pause = pause_after(error, self._failed_pulls, self._front.rng)
            self._log.warning("pull.failed", error=str(error), failures=self._failed_pulls, again_in=round(pause, 3))
            await self._sleep(pause)
            return None
        except GatewayError as error:
            self._refused_pulls += 1
            self._log.error("pull.refused", error=str(error), faults=self._refused_pulls)
            await self._sleep(self._front.settings.poll_max)
            return None
        self._failed_pulls = self._refused_pulls = 0
        if isinstance(pulled, Pulled):
            return await self._hold(pulled)
        if pulled is not None:
            # What the gateway has held the pull for is a part of the pause.
            idle = self._pause.next() - (self._front.clock.now() - began)
            await self._sleep(pulled.retry_after or idle)
        return None

    async def _pull(self) -> Pulled | NoWork | None:
        """One pull; None when a stop cut it short."""
        told = await self._ask()
        if told is None:
            return None
        if not told.is_empty:
            # Not cut short by a stop: a claim has to be handed back, and for that the rest is needed.
            await self._rest.ready.wait()
        return told.read()

    async def _ask(self) -> Told | None:
        # Until the gate is decided the answer itself is needed soon: it is the gate's positive control.
        wait = HELD_PULL_SECONDS if self._gate.passed else 0.0
        told: Told | None = None
        with self._stop.interrupts(after=_PULL_STOP_SECONDS):
            told = await self._pulls.next(self._front.kinds.names, wait=wait)
        return told  # noqa: RET504 # the block can be left early

    async def _refuse_run(self) -> DriverExit:
        """Get hold of a run to end it as UNISOLATED, where there is one: nothing else tells the gateway."""
        pulled: Pulled | NoWork | None = None
        with anyio.move_on_after(_REFUSAL_SECONDS):
            pulled = await self._last_pull()
        if isinstance(pulled, Pulled):
            await self._hold(pulled)
        return DriverExit.UNISOLATED

    async def _last_pull(self) -> Pulled | NoWork | None:
        failures = 0
        while failures < _UNISOLATED_PULLS:
            try:
                return await self._pull()
            except GatewayUnavailable as error:
                failures += 1
                self._log.warning("pull.failed", error=str(error), failures=failures)
                with self._stop.interrupts():
                    await self._front.clock.sleep(backoff(failures, self._front.rng))
            except GatewayError as error:
                self._log.error("pull.refused", error=str(error))
                break
        return None

    async def _sleep(self, seconds: float) -> None:
        """Wait, unless the driver is stopped or the gate fails."""
        if self._gate.failed:
            return
        with self._stop.interrupts(), anyio.CancelScope() as self._waiting:
            await self._front.clock.sleep(seconds)

    async def _hold(self, pulled: Pulled) -> DriverExit | None:
        self._pause.reset()
        holding = await self._rest.holding()
        match await holding.hold(pulled):
            case After.TAKEN_BACK:
                return self._taken_back()
            case After.UNISOLATED:
                return DriverExit.UNISOLATED
            case After.FAULT:
                self._faults += 1
            case After.PULL:
                self._faults = 0
        return None

    def _taken_back(self) -> DriverExit:
        self._log.info("sandbox.taken_back")
        return DriverExit.OK
