"""One claimed run from the pull to its end: keep the lease, pass the gate, run the kind, tell the end."""

import traceback
from enum import Enum, auto
from typing import Final

import anyio

from driver.errors import ClaimInDoubt, ContractError, DriverError, GatewayError, KindFailed, Unisolated, leaves
from driver.gateway.wire import End
from driver.held import CALL_SECONDS, Claimed, Held, Rooms
from driver.isolation import IsolationGate
from driver.kind import Outcome, StopReason, UnknownKind, load_kind
from driver.lease import LeaseKeeper, Loss, loss_for
from driver.stop import Stop

END_SECONDS: Final = 300.0
# A deadline may move earlier while its watcher sleeps.
_RECHECK_SECONDS: Final = 1.0


class After(Enum):
    """What the loop does after a run."""

    PULL = auto()
    FAULT = auto()
    TAKEN_BACK = auto()
    UNISOLATED = auto()


_AFTER_LOSS: Final = {Loss.TOKEN_REJECTED: After.TAKEN_BACK, Loss.UNISOLATED: After.UNISOLATED}


class RunHolder:
    """Holds one run; used once."""

    def __init__(self, rooms: Rooms, claimed: Claimed, gate: IsolationGate, stop: Stop) -> None:
        self._rooms = rooms
        self._claimed = claimed
        self._gate = gate
        self._stop = stop
        self._log = claimed.log
        self._held: Held | None = None
        self._ending = False
        self._after = After.PULL
        self._kind_scope = anyio.CancelScope()
        self._end_scope = anyio.CancelScope()

    async def hold(self) -> After:
        """Bring the run to its end, or give it up. Renewals go on until the end is acknowledged."""
        keeper = LeaseKeeper(
            self._claimed.lease,
            lambda seconds: self._claimed.calls.renew(seconds=seconds),
            clock=self._rooms.clock,
            rng=self._rooms.rng,
            log=self._log,
            on_lost=self._lose,
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keeper.run)
            tasks.start_soon(self._watch_stop)
            end: End | None = None
            with self._kind_scope:
                end = await self._guarded_work()
            if (end := self._overruled(end)) is not None:
                await self._tell(end)
            tasks.cancel_scope.cancel("the run is over")
        return self._after

    def _lose(self, loss: Loss) -> None:
        """Stop the kind at once; what may still be written depends on the loss."""
        delivered = self._held is not None and self._held.results.delivered
        if loss is Loss.CLAIM_LOST and (self._ending or delivered):
            # The gateway may have ended the run for the result or the end that it took: `end` will tell.
            return
        self._claimed.loss = self._claimed.loss or loss
        self._kill(loss.value)
        if not loss.may_end:
            self._claimed.lease.give_up()
            self._end_scope.cancel(loss.value)

    async def _watch_stop(self) -> None:
        await self._stop.wait_asked()
        self._claimed.work.stop(StopReason.STOPPING)
        await self._stop.wait_hurried()
        self._kill("hurried")

    def _kill(self, reason: str) -> None:
        """Cancel the kind without any grace, also one that a program has been given before."""
        self._kind_scope.cancel(reason)
        if self._held is not None:
            self._held.programs.kill()

    async def _guarded_work(self) -> End:
        """The run's end as its kind leaves it; this is where every failure of a kind becomes an end."""
        try:
            return await self._work()
        except Exception as error:
            return self._end_for(error)

    async def _work(self) -> End:
        with self._claimed.work.section() as opening:
            self._held = await self._open()
        if opening.stopped is not None:
            return End(outcome="FAILED", reason="stopped before the kind began")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_isolation)
            tasks.start_soon(self._watch_work_deadline, self._held)
            outcome = await load_kind(self._claimed.run.kind).run(self._held)
            tasks.cancel_scope.cancel("the kind is done")
        return _end_of(outcome)

    async def _open(self) -> Held:
        """All that has to be so before a kind may start."""
        await self._gate.wait_passed()
        load_kind(self._claimed.run.kind)
        context = await self._claimed.retries("context", self._claimed.calls.context, within=CALL_SECONDS)
        if context.kind != self._claimed.run.kind:
            raise ContractError(f"context: kind: is {context.kind}, and the claim's is {self._claimed.run.kind}")
        await self._gate.probe_for_run()
        return Held(self._rooms, self._claimed, context, self._lose)

    async def _watch_isolation(self) -> None:
        try:
            await self._gate.watch()
        except Unisolated as error:
            self._log.error("sandbox.unisolated", error=str(error))
            self._lose(Loss.UNISOLATED)

    async def _watch_work_deadline(self, held: Held) -> None:
        clock = self._rooms.clock
        began = clock.now()
        while (now := clock.now()) < held.work_deadline:
            await clock.sleep_until(min(held.work_deadline, now + _RECHECK_SECONDS))
        self._log.warning("run.work_deadline", seconds=round(clock.now() - began, 3))
        self._claimed.work.stop(StopReason.DEADLINE)

    def _end_for(self, error: Exception) -> End:
        """What a failure means: the most telling error of a group decides."""
        parts = leaves(error)
        for part in parts:
            if isinstance(part, GatewayError | ClaimInDoubt) and (loss := loss_for(part)):
                self._lose(loss)
                return End(outcome="FAILED", reason=loss.value)
        for part in parts:
            match part:
                case Unisolated():
                    self._log.error("sandbox.unisolated", error=str(part))
                    self._lose(Loss.UNISOLATED)
                    return End(outcome="UNISOLATED", reason=str(part))
                case UnknownKind():
                    return End(outcome="UNSUPPORTED", reason=str(part))
                case KindFailed():
                    return End(outcome="FAILED", exit=part.exit, reason=part.reason)
        if all(isinstance(part, DriverError) for part in parts):
            return End(outcome="FAILED", reason=str(parts[0]))
        self._after = After.FAULT
        self._log.error("run.internal_fault", error=repr(error), traceback="".join(traceback.format_exception(error)))
        return End(outcome="FAILED", reason=f"internal fault: {parts[0]!r}")

    def _overruled(self, end: End | None) -> End | None:
        """The end that is told; None where nothing may be told. `end` is None when the kind was cancelled."""
        loss = self._claimed.loss
        if loss is not None:
            self._after = _AFTER_LOSS.get(loss, After.PULL)
            if loss is Loss.UNISOLATED:
                return End(outcome="UNISOLATED", reason=loss.value)
            if loss is Loss.ERASED:
                return End(outcome="FAILED", reason="erased")
            if loss is not Loss.TOKEN_REJECTED:
                self._log.warning("claim.lost", reason=loss.value)
            return None
        if end is None:
            return End(outcome="INTERRUPTED", reason="the driver was stopped without grace")
        if self._stop.asked and end.outcome == "FAILED":
            return End(outcome="INTERRUPTED", exit=end.exit, reason=end.reason)
        return end

    async def _tell(self, end: End) -> None:
        self._ending = True
        with self._end_scope:
            try:
                answer = await self._claimed.retries("end", lambda: self._claimed.calls.end(end), within=END_SECONDS)
            except (GatewayError, ClaimInDoubt) as error:
                loss = loss_for(error)
                self._after = _AFTER_LOSS.get(loss, self._after) if loss else self._after
                self._log.error("run.end_failed", outcome=end.outcome, exit=end.exit, error=str(error))
                return
            self._log.info(
                "run.ended",
                outcome=end.outcome,
                exit=end.exit,
                reason=end.reason,
                answer=answer.result,
                gateway_reason=answer.reason,
            )
        if self._end_scope.cancelled_caught:
            self._log.error("run.end_failed", outcome=end.outcome, exit=end.exit, error="the claim fell into doubt")


def _end_of(outcome: Outcome) -> End:
    answer = dict(outcome.answer) if outcome.answer is not None else None
    return End(outcome=outcome.outcome, exit=outcome.exit, reason=outcome.reason, answer=answer)
