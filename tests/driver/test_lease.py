"""The lease: the fence before each write, the pace of renewals, and a claim that falls into doubt for good."""

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.errors import (
    ClaimInDoubt,
    ClaimLost,
    ContractError,
    GatewayRefused,
    GatewayUnavailable,
    TokenRejected,
    WorkErased,
)
from driver.gateway import wire
from driver.lease import LeaseKeeper, LeaseState, Loss
from driver.log import Log, render_json
from tests.virtual_time import BACKEND, VirtualClock

GATEWAY_START = datetime(2026, 11, 29, 10, tzinfo=UTC)
LOG = Log(lambda line: None, render=render_json, wall=lambda: 0.0)


@pytest.fixture
def anyio_backend() -> object:
    return BACKEND


def lease(seconds: float = 60.0, deadline: float | None = None, now: float = 0.0) -> wire.Lease:
    """A lease whose `deadline` is given in seconds since the gateway's start."""
    moment = GATEWAY_START + timedelta(seconds=now)
    return wire.Lease(
        now=moment,
        leased_until=moment + timedelta(seconds=seconds),
        deadline=None if deadline is None else GATEWAY_START + timedelta(seconds=deadline),
    )


def test_counts_from_the_moment_it_was_sent() -> None:
    """The lease is over by the driver's clock no later than by the gateway's."""
    state = LeaseState(lease(60), sent_at=100.0)
    assert state.expires_at == 160.0
    assert state.doubtful_at == 145.0


def test_fence_at_three_quarters() -> None:
    """Up to three quarters of the lease a write may go out, from there on none may."""
    state = LeaseState(lease(60), sent_at=100.0)
    state.require_current(144.999)
    with pytest.raises(ClaimInDoubt):
        state.require_current(145.0)


def test_doubt_is_for_good() -> None:
    """A renewal that comes back after the doubt makes nothing writable again."""
    state = LeaseState(lease(60), sent_at=0.0)
    with pytest.raises(ClaimInDoubt):
        state.require_current(46.0)
    state.renewed(lease(60), sent_at=45.0)
    with pytest.raises(ClaimInDoubt):
        state.require_current(46.0)


@pytest.mark.parametrize(
    ("deadline", "work_deadline"),
    [(3600.0, 3540.0), (600.0, 540.0), (100.0, 90.0), (5.0, 4.5)],
)
def test_closing_reserve(deadline: float, work_deadline: float) -> None:
    """The reserve is 60 s, and a tenth of what is left where that is less."""
    state = LeaseState(lease(60, deadline=deadline), sent_at=1000.0)
    assert state.deadline == 1000.0 + deadline
    assert state.work_deadline == 1000.0 + work_deadline


def test_nothing_is_written_past_the_deadline() -> None:
    """The deadline ends the claim even while the lease is live."""
    state = LeaseState(lease(60, deadline=30), sent_at=0.0)
    state.require_current(29.9)
    assert state.loss(30.0) is Loss.DEADLINE
    with pytest.raises(ClaimInDoubt, match="deadline"):
        state.require_current(30.0)


def test_deadline_only_moves_earlier() -> None:
    """An earlier deadline is taken; a later one, or none, is refused and changes nothing."""
    state = LeaseState(lease(60, deadline=600), sent_at=0.0)
    assert state.renewed(lease(60, deadline=300, now=20), sent_at=20.0)
    assert state.deadline == 300.0
    assert not state.renewed(lease(60, deadline=601, now=40), sent_at=40.0)
    assert not state.renewed(lease(60, deadline=None, now=45), sent_at=45.0)
    assert state.deadline == 300.0
    assert state.expires_at == 105.0


def test_deadline_given_later_is_taken() -> None:
    """A claim without a deadline may get one."""
    state = LeaseState(lease(60), sent_at=0.0)
    assert state.deadline is None
    assert state.renewed(lease(60, deadline=200, now=20), sent_at=20.0)
    assert state.deadline == 200.0


def test_same_deadline_is_no_later_one() -> None:
    """What a slow request takes on its way neither moves a deadline for good nor looks like a later one."""
    state = LeaseState(lease(60, deadline=600, now=5), sent_at=0.0)
    assert state.deadline == 595.0
    assert state.renewed(lease(60, deadline=600, now=20), sent_at=20.0)
    assert state.deadline == 600.0
    assert state.renewed(lease(60, deadline=600, now=49), sent_at=40.0)
    assert state.deadline == 600.0


@given(seconds=st.floats(3.0, 600.0), seed=st.integers())
def test_renewal_pace(seconds: float, seed: int) -> None:
    """A renewal is due a third into the lease, give or take a tenth."""
    state = LeaseState(lease(seconds), sent_at=50.0)
    pause = state.renewal_at(random.Random(seed)) - 50.0
    assert seconds * 0.3 - 1e-3 <= pause <= seconds * 0.3667 + 1e-3


class Keeping:
    """A keeper on virtual time, with a gateway that answers each renewal as `answer` says."""

    def __init__(self, answer: Callable[[int], wire.Lease], *, seconds: float = 60.0, deadline: float | None = None):
        self.clock = VirtualClock()
        self.state = LeaseState(lease(seconds, deadline), sent_at=0.0)
        self.renewals: list[float] = []
        self.lost: list[tuple[float, Loss]] = []
        self.gives_up = True
        self._answer = answer
        self.keeper = LeaseKeeper(
            self.state, self._renew, clock=self.clock, rng=random.Random(7), log=LOG, on_lost=self._on_lost
        )

    async def _renew(self, seconds: float) -> wire.Lease:
        self.renewals.append(self.clock.now())
        return self._answer(len(self.renewals))

    def _on_lost(self, loss: Loss) -> None:
        self.lost.append((self.clock.now(), loss))
        if not loss.may_end and self.gives_up:
            self.state.give_up()


def fail(error: Exception) -> wire.Lease:
    raise error


@pytest.mark.anyio
async def test_keeps_its_pace() -> None:
    """Over ten leases the renewals come every third, and the claim is never in doubt."""
    keeping = Keeping(lambda n: lease(60, now=keeping.clock.now()))
    with anyio.move_on_after(600):
        await keeping.keeper.run()
    assert not keeping.lost
    gaps = [b - a for a, b in zip(keeping.renewals, keeping.renewals[1:], strict=False)]
    assert 27 <= len(keeping.renewals) <= 33
    assert all(17.9 <= gap <= 22.1 for gap in gaps)


@pytest.mark.anyio
@pytest.mark.parametrize("error", [GatewayUnavailable(), GatewayRefused("renew", 400, None), ContractError()])
async def test_failed_renewals_within_the_lease_change_nothing(error: Exception) -> None:
    """After failures in a row that end in time the claim holds, and the pace is the usual one again."""
    keeping = Keeping(lambda n: fail(error) if n in (2, 3, 4) else lease(60, now=keeping.clock.now()))
    with anyio.move_on_after(200):
        await keeping.keeper.run()
    assert not keeping.lost
    failed_for = keeping.renewals[4] - keeping.renewals[1]
    assert failed_for < 18
    assert 18 <= keeping.renewals[5] - keeping.renewals[4] <= 22


@pytest.mark.anyio
async def test_without_renewal_the_claim_is_in_doubt_at_three_quarters() -> None:
    """With no good renewal the loss comes exactly at three quarters, after one try at a time."""
    keeping = Keeping(lambda n: fail(GatewayUnavailable()))
    await keeping.keeper.run()
    assert keeping.lost == [(45.0, Loss.IN_DOUBT)]
    assert 3 <= len(keeping.renewals) <= 30
    with pytest.raises(ClaimInDoubt):
        keeping.state.require_current(0.0)


@pytest.mark.anyio
async def test_doubt_counts_from_the_last_good_renewal() -> None:
    """The three quarters begin when the last renewal that succeeded was sent."""
    keeping = Keeping(lambda n: lease(60, now=keeping.clock.now()) if n == 1 else fail(GatewayUnavailable()))
    await keeping.keeper.run()
    assert keeping.lost == [(keeping.renewals[0] + 45.0, Loss.IN_DOUBT)]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("error", "loss"),
    [
        (TokenRejected(), Loss.TOKEN_REJECTED),
        (ClaimLost(), Loss.CLAIM_LOST),
    ],
)
async def test_losses(error: Exception, loss: Loss) -> None:
    """What the gateway says of the claim is reported once, at the renewal that brought it."""
    keeping = Keeping(lambda n: fail(error))
    await keeping.keeper.run()
    assert keeping.lost == [(keeping.renewals[0], loss)]
    assert len(keeping.renewals) == 1


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("error", "loss"),
    [(WorkErased(), Loss.ERASED), (ClaimLost(), Loss.CLAIM_LOST), (TokenRejected(), Loss.TOKEN_REJECTED)],
)
async def test_a_refusal_that_does_not_end_the_claim(error: Exception, loss: Loss) -> None:
    """Where the end may still be told, nothing is renewed any more, and the claim holds until it is in doubt."""
    keeping = Keeping(lambda n: fail(error))
    keeping.gives_up = False
    await keeping.keeper.run()
    assert keeping.lost == [(keeping.renewals[0], loss), (45.0, Loss.IN_DOUBT)]
    assert len(keeping.renewals) == 1


@pytest.mark.anyio
async def test_a_fault_of_the_keeper_is_no_lost_claim() -> None:
    """An error that nobody foresaw is a failed renewal like any other, and the next one repairs it."""
    keeping = Keeping(lambda n: fail(ZeroDivisionError()) if n == 1 else lease(60, now=keeping.clock.now()))
    with anyio.move_on_after(100):
        await keeping.keeper.run()
    assert keeping.lost == []
    assert keeping.renewals[1] - keeping.renewals[0] <= 6


@pytest.mark.anyio
@pytest.mark.parametrize(("told", "least", "most"), [(8.0, 8.0, 8.0), (3600.0, 10.0, 14.0)])
async def test_renewal_that_is_told_to_wait(told: float, least: float, most: float) -> None:
    """A Retry-After is kept where it fits; one that would use up the lease is cut to half of what is left."""
    busy = GatewayUnavailable(retry_after=told)
    keeping = Keeping(lambda n: fail(busy) if n == 1 else lease(60, now=keeping.clock.now()))
    with anyio.move_on_after(40):
        await keeping.keeper.run()
    assert keeping.lost == []
    assert least <= keeping.renewals[1] - keeping.renewals[0] <= most


@pytest.mark.anyio
async def test_suspended_past_the_lease() -> None:
    """A driver that was suspended past its lease finds the claim over on waking, and does not renew it."""
    keeping = Keeping(lambda n: lease(60, now=keeping.clock.now()))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keeping.keeper.run)
        await keeping.clock.sleep(5.0)
        keeping.clock.suspend(3600.0)
        with pytest.raises(ClaimInDoubt):
            keeping.state.require_current(keeping.clock.now())
    assert [loss for _, loss in keeping.lost] == [Loss.IN_DOUBT]
    assert keeping.lost[0][0] - 3600.0 <= 6.0
    assert keeping.renewals == []


@pytest.mark.anyio
async def test_lease_that_ends_at_the_deadline() -> None:
    """Near the deadline leases get shorter; renewals do not come ever faster, and the deadline ends the claim."""

    def answer(_: int) -> wire.Lease:
        now = keeping.clock.now()
        return lease(min(60.0, 100.0 - now), deadline=100.0, now=now)

    keeping = Keeping(answer, deadline=100.0)
    await keeping.keeper.run()
    assert len(keeping.lost) == 1
    assert 99.0 <= keeping.lost[0][0] <= 100.0
    assert len(keeping.renewals) < 40


@pytest.mark.anyio
async def test_hung_renewal_does_not_delay_the_doubt() -> None:
    """A gateway that swallows renewals cannot keep the driver from giving the claim up in time."""
    clock = VirtualClock()
    lost: list[tuple[float, Loss]] = []

    async def swallow(seconds: float) -> wire.Lease:
        with anyio.move_on_after(seconds):
            await anyio.sleep_forever()
        raise GatewayUnavailable

    keeper = LeaseKeeper(
        LeaseState(lease(60), sent_at=0.0),
        swallow,
        clock=clock,
        rng=random.Random(7),
        log=LOG,
        on_lost=lambda loss: lost.append((clock.now(), loss)),
    )
    await keeper.run()
    assert lost == [(45.0, Loss.IN_DOUBT)]
