"""What an answer of the gateway means, and which failures are worth another try.

This is the only place that decides either (docs/protocol.md, "Identity"). Back-off is exponential with a
cap, and the jitter is applied after the cap, so that many drivers do not come back in one second.
"""

import math
import random
from collections.abc import Mapping
from typing import Final

from driver.errors import (
    ClaimLost,
    GatewayError,
    GatewayRefused,
    GatewayUnavailable,
    TokenRejected,
    WorkErased,
)

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
    if not text:
        return None
    # Imported here, as few answers hold a date and the first pull needs this module (driver.loading).
    from email.utils import parsedate_to_datetime

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
