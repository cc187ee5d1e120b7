"""The lease of one claim: what is known of it, how it is renewed, and the fence before each write.

All moments are of the driver's clock (CLOCK_BOOTTIME). Gateway times are used as differences only, and count
from the moment the request was *sent*, so the driver's idea of the lease is never longer than the gateway's.
"""

import math
import random
import traceback
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

from driver.clock import Clock
from driver.errors import (
    ClaimInDoubt,
    ClaimLost,
    GatewayError,
    GatewayUnavailable,
    TokenRejected,
    Unisolated,
    WorkErased,
)
from driver.gateway import wire
from driver.gateway.retry import backoff
from driver.log import Log

RENEW_AFTER: Final = 1 / 3
RENEW_JITTER: Final = 0.1
DOUBT_AFTER: Final = 3 / 4
CLOSING_RESERVE: Final = 60.0
CLOSING_SHARE: Final = 0.1
# A lease that ends at the deadline is granted for less each time; without a least pause the last renewals
# would come ever faster.
_LEAST_PAUSE: Final = 0.1
_LONGEST_TRY: Final = 10.0
_LEAST_TRY: Final = 0.01


class Loss(Enum):
    """Why a claim ended before its run did. After any of them nothing is written for it but what is said here."""

    IN_DOUBT = "no renewal succeeded for three quarters of the lease"
    CLAIM_LOST = "the gateway says that the claim no longer holds the run"
    DEADLINE = "the deadline passed"
    TOKEN_REJECTED = "the gateway does not accept the token any more"
    ERASED = "the work was erased"
    UNISOLATED = "the network policy does not hold"

    @property
    def may_end(self) -> bool:
        """Whether the claim still holds, so that the run's end can and must be told."""
        return self in (Loss.ERASED, Loss.UNISOLATED)


def loss_for(error: BaseException) -> Loss | None:
    """The loss that an error means, or None for one that says nothing of the claim."""
    match error:
        case TokenRejected():
            return Loss.TOKEN_REJECTED
        case ClaimLost():
            return Loss.CLAIM_LOST
        case WorkErased():
            return Loss.ERASED
        case ClaimInDoubt():
            return Loss.IN_DOUBT
        case Unisolated():
            return Loss.UNISOLATED
        case _:
            return None


class LeaseState:
    """What is known of the lease. Plain state: every decision about it is a function of a moment."""

    def __init__(self, lease: wire.Lease, sent_at: float) -> None:
        self._sent_at = sent_at
        self._seconds = max(lease.lease_seconds, 0.0)
        self._told_deadline = lease.deadline
        self._deadline: float | None = None
        self._reserve = 0.0
        self._over = False
        self._ends_at_deadline = _ends_at_deadline(lease)
        if lease.deadline_seconds is not None:
            self._place_deadline(lease.deadline_seconds)

    def renewed(self, lease: wire.Lease, sent_at: float) -> bool:
        """Take a renewal. False when it names a later deadline than before (or none), which is ignored.

        A renewal of a claim that was already given up changes nothing.
        """
        if self._over:
            return True
        self._sent_at = sent_at
        self._seconds = max(lease.lease_seconds, 0.0)
        self._ends_at_deadline = _ends_at_deadline(lease)
        told, seconds = lease.deadline, lease.deadline_seconds
        if told is None or seconds is None:
            return self._told_deadline is None
        if self._told_deadline is not None and told > self._told_deadline:
            return False
        if told == self._told_deadline and self._deadline is not None:
            # Each estimate is early by what its request took on its way: the latest is the nearest.
            self._deadline = max(self._deadline, sent_at + seconds)
        else:
            self._told_deadline = told
            self._place_deadline(seconds)
        return True

    def _place_deadline(self, seconds: float) -> None:
        self._deadline = self._sent_at + seconds
        self._reserve = min(CLOSING_RESERVE, CLOSING_SHARE * max(seconds, 0.0))

    @property
    def seconds(self) -> float:
        """Length of the lease as it was last granted."""
        return self._seconds

    @property
    def expires_at(self) -> float:
        """When the gateway may give the run to somebody else."""
        return self._sent_at + self._seconds

    @property
    def deadline(self) -> float | None:
        return self._deadline

    @property
    def work_deadline(self) -> float | None:
        """When the program is stopped: the deadline less the closing reserve."""
        return None if self._deadline is None else self._deadline - self._reserve

    @property
    def doubtful_at(self) -> float:
        """From when on nothing may be written: three quarters into the lease, or the deadline."""
        doubtful = self._sent_at + DOUBT_AFTER * self._seconds
        return doubtful if self._deadline is None else min(doubtful, self._deadline)

    def is_old(self, now: float) -> bool:
        """Whether a renewal is due already: so it is on its arrival where the gateway has held the pull."""
        return now >= self._sent_at + RENEW_AFTER * self._seconds

    def renewal_at(self, rng: random.Random) -> float:
        """When the next renewal is due: a third into the lease, give or take a tenth of that."""
        pause = RENEW_AFTER * self._seconds * rng.uniform(1 - RENEW_JITTER, 1 + RENEW_JITTER)
        return self._sent_at + max(pause, _LEAST_PAUSE)

    def loss(self, now: float) -> Loss | None:
        """Why nothing may be written at `now`, as far as the clock can tell."""
        if self._deadline is not None and now >= self._deadline:
            return Loss.DEADLINE
        if self._over or now >= self.doubtful_at:
            return Loss.DEADLINE if self._ends_at_deadline else Loss.IN_DOUBT
        return None

    @property
    def over(self) -> bool:
        """Whether the claim was given up."""
        return self._over

    def give_up(self) -> None:
        """The claim is over for good: no later renewal makes it writable again."""
        self._over = True

    def require_current(self, now: float) -> None:
        """The fence: called right before each write. Raises ClaimInDoubt."""
        if loss := self.loss(now):
            self._over = True
            raise ClaimInDoubt(loss.value)


def _ends_at_deadline(lease: wire.Lease) -> bool:
    """Whether the gateway grants no more than what is left: such a lease fell short of nothing but the deadline."""
    return lease.deadline is not None and lease.leased_until >= lease.deadline


class LeaseKeeper:
    """Renews, and reports through `on_lost` when the claim is over.

    A failed renewal is tried again with back-off, one try at a time; a fault here is not a lost claim: that
    the lease runs into doubt is. Whether a refused renewal ends the claim is for `on_lost` to decide, by giving
    up the lease: one that crosses the end of its own run is refused too.
    """

    def __init__(
        self,
        lease: LeaseState,
        renew: Callable[[float], Awaitable[wire.Lease]],
        *,
        clock: Clock,
        rng: random.Random,
        log: Log,
        on_lost: Callable[[Loss], None],
    ) -> None:
        self._lease = lease
        self._renew = renew
        self._clock = clock
        self._rng = rng
        self._log = log
        self._on_lost = on_lost
        self._failures = 0

    async def freshen(self) -> None:
        """Renew a claim that is old on its arrival, even if it is in doubt by then: nothing was written for it yet.

        It counts from when the pull was sent, and the gateway may have held that for longer than a lease. One try.
        """
        if self._lease.is_old(self._clock.now()):
            await self._try(self._lease.seconds / 6)

    async def run(self) -> None:
        """Keep the lease; returns when the claim is over."""
        due = self._lease.renewal_at(self._rng)
        while not self._lease.over:
            await self._clock.sleep_until(min(due, self._lease.doubtful_at))
            if loss := self._lease.loss(self._clock.now()):
                self._lease.give_up()
                self._on_lost(loss)
                return
            # Short enough that a few tries fit between the first failure and the doubt.
            due = await self._try(min(self._lease.seconds / 6, self._lease.doubtful_at - self._clock.now()))

    async def _try(self, seconds: float) -> float:
        """One renewal, in that time; when the next one is due."""
        try:
            await self._renew_once(min(_LONGEST_TRY, max(seconds, _LEAST_TRY)))
        except Exception as error:
            if loss := loss_for(error):
                self._on_lost(loss)
                # Another renewal would be refused like this one; what is left to see is the doubt.
                return math.inf
            return self._clock.now() + self._pause_after(error)
        self._failures = 0
        return self._lease.renewal_at(self._rng)

    async def _renew_once(self, seconds: float) -> None:
        sent_at = self._clock.now()
        granted = await self._renew(seconds)
        if not self._lease.renewed(granted, sent_at):
            self._log.warning("lease.deadline_ignored", deadline=str(granted.deadline))
        self._log.debug("lease.renewed", seconds=self._lease.seconds)

    def _pause_after(self, error: Exception) -> float:
        """Log a failed renewal; seconds until the next try."""
        self._failures += 1
        left = self._lease.doubtful_at - self._clock.now()
        level = self._log.warning if isinstance(error, GatewayUnavailable) else self._log.error
        level(
            "lease.renewal_failed",
            error=str(error),
            failures=self._failures,
            doubtful_in=round(left, 3),
            traceback=None if isinstance(error, GatewayError) else "".join(traceback.format_exception(error)),
        )
        seconds = self._lease.seconds
        pause = backoff(self._failures, self._rng, base=seconds / 60, cap=seconds / 10)
        told = error.retry_after if isinstance(error, GatewayUnavailable) else None
        return pause if told is None else max(pause, min(told, left / 2))
