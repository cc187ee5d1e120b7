"""One claimed run from the pull to its end: keep the lease, pass the gate, run the kind, tell the end."""

import traceback
from typing import Final

import anyio

from driver.ending import end_for, end_of, is_fault, loss_in
from driver.errors import ContractError, Unisolated, leaves, no_room
from driver.exits import ProgramExit
from driver.front import After
from driver.gateway.wire import End
from driver.held import CALL_SECONDS, Claimed, Held, Rooms
from driver.isolation import IsolationGate
from driver.kind import Kind, StopReason
from driver.lease import LeaseKeeper, Loss
from driver.stop import Stop
from driver.teller import EndTeller

# What is kept of a stop's grace for telling the end.
_END_SHARE_OF_GRACE: Final = 0.2
# A deadline may move earlier while its watcher sleeps.
_RECHECK_SECONDS: Final = 1.0
LEAVING_SECONDS: Final = 60.0
"""How long a cancelled kind may tidy up: emptying the workspace is the longest of it."""


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
        self._teller = EndTeller(claimed)
        self._faulty = False
        self._overdue = False
        self._killed = anyio.Event()
        self._kind_scope = anyio.CancelScope()

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
        await keeper.freshen()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keeper.run)
            tasks.start_soon(self._watch_stop)
            end = self._overruled(await self._end_of_kind())
            if end is not None:
                await self._teller.tell(end)
            tasks.cancel_scope.cancel("the run is over")
        if (loss := self._claimed.loss) in _AFTER_LOSS:
            return _AFTER_LOSS[loss]
        return After.FAULT if self._faulty else After.PULL

    def _lose(self, loss: Loss) -> None:
        """Stop the kind at once; what may still be written depends on the loss."""
        if self._is_own_doing(loss):
            return
        self._claimed.lose(loss)
        if not loss.may_end:
            self._claimed.lease.give_up()
            self._teller.give_up(loss.value)
        self._kill(loss.value)

    def _is_own_doing(self, loss: Loss) -> bool:
        """Whether the gateway may refuse because of what it took from this very claim: `end` will tell."""
        if loss is Loss.CLAIM_LOST:
            return self._teller.began or self._delivered
        return loss is Loss.TOKEN_REJECTED and self._teller.began and self._claimed.loss is Loss.UNISOLATED

    @property
    def _delivered(self) -> bool:
        return self._held is not None and self._held.results.delivered

    def _kill(self, reason: str) -> None:
        """Cancel the kind without any grace, also one that a program has been given before."""
        self._killed.set()
        self._kind_scope.cancel(reason)
        if self._held is not None:
            self._held.programs.kill()

    async def _watch_stop(self) -> None:
        await self._stop.wait_asked()
        self._claimed.work.stop(StopReason.STOPPING)
        await self._stop.wait_left(self._stop.grace * _END_SHARE_OF_GRACE)
        self._kill("the driver is stopped")

    async def _end_of_kind(self) -> End | None:
        """The end as the kind leaves it, or None when it was cancelled."""
        end: End | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_leaving)
            with self._kind_scope:
                end = await self._guarded_work()
            tasks.cancel_scope.cancel("the kind is gone")
        return end

    async def _watch_leaving(self) -> None:
        """Stop the driver where a cancelled kind stays: only the end of the process ends that."""
        await self._killed.wait()
        await self._rooms.clock.sleep(LEAVING_SECONDS)
        self._log.error("run.kind_stuck", seconds=LEAVING_SECONDS)
        self._stop.ask()

    async def _guarded_work(self) -> End:
        """The run's end as its kind leaves it; this is where every failure of a kind becomes an end."""
        try:
            return await self._work()
        except Exception as error:
            if (loss := loss_in(error)) is not None:
                self._lose(self._of_now(loss))
            if loss is Loss.UNISOLATED:
                self._log.error("sandbox.unisolated", error=str(error))
            if no_room(error):
                self._log.error("run.no_room", error=str(leaves(error)[0]))
            if is_fault(error):
                self._faulty = True
                trace = "".join(traceback.format_exception(error))
                self._log.error("run.internal_fault", error=repr(error), traceback=trace)
            return end_for(error)

    def _of_now(self, loss: Loss) -> Loss:
        """The fence says only that the claim is in doubt; the clock can tell a deadline from a lease."""
        by_clock = self._claimed.lease.loss(self._rooms.clock.now()) if loss is Loss.IN_DOUBT else None
        return by_clock or loss

    async def _work(self) -> End:
        with self._claimed.work.section() as opening:
            kind, self._held = await self._open()
        if opening.stopped is not None:
            return End(outcome="FAILED", reason="stopped before the kind began")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_isolation)
            tasks.start_soon(self._watch_work_deadline, self._held)
            outcome = await kind.run(self._held)
            tasks.cancel_scope.cancel("the kind is done")
        return end_of(outcome)

    async def _open(self) -> tuple[Kind, Held]:
        """All that has to be so before a kind may start."""
        await self._gate.wait_passed()
        kind = await self._rooms.load_kind(self._claimed.run.kind)
        context = await self._claimed.retries("context", self._claimed.calls.context, within=CALL_SECONDS)
        if context.kind != self._claimed.run.kind:
            raise ContractError(f"context: kind: is {context.kind}, and the claim's is {self._claimed.run.kind}")
        await self._gate.probe_for_run()
        return kind, Held(self._rooms, self._claimed, context, self._lose)

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
        if self._claimed.work.stop(StopReason.DEADLINE):
            self._log.warning("run.work_deadline", seconds=round(clock.now() - began, 3))
        await clock.sleep(held.closing_seconds)
        self._overdue = True
        self._kill("the kind did not end")

    def _overruled(self, end: End | None) -> End | None:
        """The end that is told; None where nothing may be told. `end` is None when the kind was cancelled."""
        loss = self._claimed.loss
        if loss is not None:
            return self._end_after(loss)
        if end is None and self._overdue:
            reason = "the kind did not end after its work was stopped"
            return End(outcome="FAILED", exit=ProgramExit.STOPPED_AT_DEADLINE, reason=reason)
        if end is None:
            return End(outcome="INTERRUPTED", reason="the driver was stopped before the run was over")
        if end.outcome == "FAILED" and self._was_interrupted():
            return End(outcome="INTERRUPTED", exit=end.exit, reason=end.reason)
        return end

    def _end_after(self, loss: Loss) -> End | None:
        if self._claimed.lease.over:
            if loss is not Loss.TOKEN_REJECTED:
                self._log.warning("claim.lost", reason=loss.value)
            return None
        if loss is Loss.UNISOLATED:
            return End(outcome="UNISOLATED", reason=loss.value)
        return End(outcome="FAILED", reason="erased")

    def _was_interrupted(self) -> bool:
        """Whether a stop is behind a failure; not where a program had ended by itself and its result is there."""
        return self._stop.asked and (not self._delivered or self._claimed.work.cut is StopReason.STOPPING)
