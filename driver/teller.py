"""Tells the end of a run until the gateway acknowledges it."""

from typing import Final

import anyio

from driver.errors import ClaimInDoubt, GatewayError, GatewayRefused, WorkErased
from driver.gateway.wire import End, EndResult
from driver.held import Claimed
from driver.lease import loss_for

END_SECONDS: Final = 300.0
# `end` is safe to repeat, and a connection that swallows it must not use up the lease or the grace of a stop.
_LONGEST_TRY: Final = 10.0
_SHARE: Final = 1 / 3
_LEAST_TRY: Final = 1.0
_ERASED: Final = End(outcome="FAILED", reason="erased")


class EndTeller:
    """Tells one end; used once. `began` is true from the moment on when the gateway may have taken it."""

    def __init__(self, claimed: Claimed) -> None:
        self.began = False
        self._claimed = claimed
        self._log = claimed.log
        self._scope = anyio.CancelScope()

    def give_up(self, reason: str) -> None:
        """Tell no more: the claim is over."""
        self._scope.cancel(reason)

    async def tell(self, end: End) -> None:
        """Return when the end is acknowledged, or cannot be told; the log says which."""
        self.began = True
        with self._scope:
            await self._tell(end)
        if self._scope.cancelled_caught:
            self._tell_failure(end, self._claimed.loss.value if self._claimed.loss else "the claim is over")

    async def _tell(self, end: End) -> None:
        try:
            answer = await self._claimed.retries("end", lambda: self._try(end), within=END_SECONDS)
        except (GatewayError, ClaimInDoubt) as error:
            if (loss := loss_for(error)) is not None:
                self._claimed.lose(loss)
            self._tell_failure(end, str(error))
            if (instead := _instead_of(end, error)) is not None:
                await self._tell(instead)
            return
        self._log.info(
            "run.ended",
            outcome=end.outcome,
            exit=end.exit,
            reason=end.reason,
            answer=answer.result,
            gateway_reason=answer.reason,
        )

    async def _try(self, end: End) -> EndResult:
        left = min(self._claimed.seconds_left(), self._claimed.lease.seconds)
        seconds = min(_LONGEST_TRY, left * _SHARE)
        return await self._claimed.calls.end(end, seconds=max(seconds, _LEAST_TRY))

    def _tell_failure(self, end: End, error: str) -> None:
        self._log.error("run.end_failed", outcome=end.outcome, exit=end.exit, error=error)


def _instead_of(end: End, error: GatewayError | ClaimInDoubt) -> End | None:
    """What is told in place of an end that will never be taken, or None (docs/protocol.md, "Identity")."""
    if isinstance(error, WorkErased) and end != _ERASED:
        return _ERASED
    if isinstance(error, GatewayRefused) and end.outcome == "COMPLETED":
        return End(outcome="FAILED", exit=end.exit, reason=str(error))
    return None
