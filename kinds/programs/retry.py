"""When a call through the door is tried again, and how long that waits."""

import random
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from kinds.programs.errors import CallBusy, CallFault

RETRIES: Final = 5

_FIRST_WAIT: Final = 1.0
_LONGEST_WAIT: Final = 30.0
# A wish beyond this is not worth waiting for within one call; the next try asks again.
_LONGEST_WISH: Final = 300.0
_SPREAD: Final = 1.0


class Backoff:
    """How long to wait before each try. One for each call."""

    def __init__(self, chance: random.Random, retries: int = RETRIES) -> None:
        self._chance = chance
        self._retries = retries
        self.spent = 0

    def after(self, error: CallFault) -> float | None:
        """Seconds to wait before the next try, or None when all were spent.

        As `Retry-After` says, else with exponential back-off and full jitter. A refusal by the door itself
        for want of room reached no provider, so it spends no try; the work deadline bounds those.
        """
        wish = error.retry_after if isinstance(error, CallBusy) else None
        if isinstance(error, CallBusy) and error.local:
            return (wish or 0.0) + self._chance.uniform(0, _SPREAD)
        if self.spent >= self._retries:
            return None
        self.spent += 1
        if wish is not None:
            return wish
        return self._chance.uniform(0, min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (self.spent - 1)))


def retry_after(value: str, wall: Callable[[], float]) -> float | None:
    """Seconds that a `Retry-After` header asks for (RFC 9110, 10.2.3), at most 300; None when it says none."""
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:12]), _LONGEST_WISH)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max(moment.timestamp() - wall(), 0.0), _LONGEST_WISH)
