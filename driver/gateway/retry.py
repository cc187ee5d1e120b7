"""What an answer of the gateway means, and which failures are worth another try.

This is the only place that decides either (docs/protocol.md, "Identity"). Back-off is exponential with a
cap, and the jitter is applied after the cap, so that many drivers do not come back in one second.
"""

import math
import random
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from driver.clock import Clock
from driver.errors import (
    ClaimLost,
    GatewayError,
    GatewayRefused,
    GatewayUnavailable,
    TokenRejected,
    WorkErased,
)
from driver.log import Log

T = TypeVar("T")

BACKOFF_BASE: Final = 0.25
BACKOFF_CAP: Final = 30.0
_TOLD_JITTER: Final = 0.1
_LONGEST_TOLD: Final = 3600.0
_LEAST_CUT: Final = 1.0


def error_for(call: str, status: int, headers: Mapping[str, str], code: str | None) -> GatewayError:
    """The error that a refusing status means. `code` is the problem document's, for the text only."""
    said = f"{call}: {status}" + (f" ({code})" if code else "")
    if status == 401:
        return TokenRejected(said)
    if status == 409:
        return ClaimLost(said)
    if status == 410:
        return WorkErased(said)
    if status == 429 or status >= 500:
        return GatewayUnavailable(said, retry_after=retry_after(headers))
    return GatewayRefused(call, status, code)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that `Retry-After` asks for (RFC 9110, 10.2.3), from 0 to an hour, or None.

    A date is compared with the `Date` of the same answer, never with the sandbox's wall clock.
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), _LONGEST_TOLD)
    try:
        told = parsedate_to_datetime(text)
        sent = parsedate_to_datetime(headers.get("date", ""))
        seconds = (told - sent).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), _LONGEST_TOLD)


def backoff(failures: int, rng: random.Random, *, base: float = BACKOFF_BASE, cap: float = BACKOFF_CAP) -> float:
    """Seconds to wait after so many failures in a row (at least 1): full jitter below a capped power of two."""
    return rng.uniform(0.0, min(cap, base * 2.0 ** min(failures - 1, 30)))


def pause_after(error: GatewayUnavailable, failures: int, rng: random.Random, *, left: float = math.inf) -> float:
    """Seconds until the next try: what the gateway told (and up to a tenth more), or back-off.

    What was told and does not fit into the `left` seconds is cut to half of them, as long as that is a second: a
    try that comes too early harms less than work that was done and is never delivered.
    """
    if error.retry_after is None:
        return backoff(failures, rng)
    told = error.retry_after * (1 + rng.uniform(0.0, _TOLD_JITTER))
    return left / 2 if told > left >= 2 * _LEAST_CUT else told


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
