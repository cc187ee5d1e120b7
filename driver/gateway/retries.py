"""Repeats calls that failed for a passing reason."""

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from driver.clock import Clock
from driver.errors import GatewayUnavailable
from driver.gateway.retry import pause_after
from driver.log import Log

T = TypeVar("T")


class Retries:
    """Repeats calls while they raise GatewayUnavailable. Any other error, a cancellation too, passes through.

    `until` is asked each time for the moment of `clock` after which no try may begin: when the next one would
    begin later, the last error is raised at once.
    """

    def __init__(self, clock: Clock, rng: random.Random, log: Log, *, until: Callable[[], float]) -> None:
        self._clock = clock
        self._rng = rng
        self._log = log
        self._until = until

    async def __call__(self, call: str, action: Callable[[], Awaitable[T]], *, within: float) -> T:
        """The first answer of `action`, tried for at most `within` seconds. `call` names it in the log."""
        last = self._clock.now() + within
        failure: GatewayUnavailable | None = None

        def left() -> float:
            return min(last, self._until()) - self._clock.now()

        async def attempt() -> T:
            nonlocal failure
            # The bound may have moved earlier during the pause.
            if failure is not None and left() < 0:
                raise failure
            try:
                return await action()
            except GatewayUnavailable as error:
                failure = error
                raise

        def wait(state: RetryCallState) -> float:
            return pause_after(_error_of(state), state.attempt_number, self._rng, left=left())

        def before_sleep(state: RetryCallState) -> None:
            self._log.warning(
                "gateway.call_failed",
                call=call,
                error=str(_error_of(state)),
                tries=state.attempt_number,
                again_in=round(state.upcoming_sleep, 3),
            )

        tries = AsyncRetrying(
            retry=retry_if_exception_type(GatewayUnavailable),
            wait=wait,
            stop=lambda state: state.upcoming_sleep > left(),
            sleep=self._clock.sleep,
            before_sleep=before_sleep,
            reraise=True,
        )
        return await tries(attempt)


def _error_of(state: RetryCallState) -> GatewayUnavailable:
    error = state.outcome.exception() if state.outcome else None
    if not isinstance(error, GatewayUnavailable):
        raise TypeError(f"only GatewayUnavailable is repeated, not {error!r}")
    return error
