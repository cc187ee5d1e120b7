"""Retries: what is repeated, after how long, and until when; on virtual time."""

import random
from collections.abc import Callable

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.errors import ClaimLost, ContractError, GatewayError, GatewayUnavailable
from driver.gateway.retries import Retries
from driver.gateway.retry import BACKOFF_CAP, backoff, pause_after, retry_after
from driver.log import Log, render_json
from tests.virtual_time import BACKEND, VirtualClock

NEVER = float("inf")
LOG = Log(lambda line: None, render=render_json, wall=lambda: 0.0)


@pytest.fixture
def anyio_backend() -> object:
    return BACKEND


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0 "}, 0.0),
        ({"retry-after": "999999999"}, 3600.0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "1.5"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "٣"}, None),
        ({}, None),
        ({"retry-after": "Sun, 29 Nov 2026 10:00:30 GMT", "date": "Sun, 29 Nov 2026 10:00:00 GMT"}, 30.0),
        ({"retry-after": "Sun, 29 Nov 2026 09:00:00 GMT", "date": "Sun, 29 Nov 2026 10:00:00 GMT"}, 0.0),
        ({"retry-after": "Sun, 29 Nov 2099 09:00:00 GMT", "date": "Sun, 29 Nov 2026 10:00:00 GMT"}, 3600.0),
        ({"retry-after": "Sun, 29 Nov 2026 10:00:30 GMT"}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    """Seconds, or a date against the answer's own Date; absurd values are bounded, nonsense is none."""
    assert retry_after(headers) == seconds


@given(failures=st.integers(1, 10_000), seed=st.integers())
def test_backoff_is_capped_with_full_jitter(failures: int, seed: int) -> None:
    """A pause lies anywhere below the capped power of two, so that drivers do not come back together."""
    bound = min(BACKOFF_CAP, 0.25 * 2 ** min(failures - 1, 40))
    assert 0 <= backoff(failures, random.Random(seed)) <= bound


def test_backoff_spreads_over_its_whole_bound() -> None:
    """Of 200 drivers at the cap no more than a handful come back in the same second."""
    seconds = [int(backoff(20, random.Random(seed))) for seed in range(200)]
    assert max(seconds.count(second) for second in set(seconds)) <= 14


def test_told_pause_is_kept() -> None:
    """What the gateway told is waited at least, and at most a tenth more."""
    pauses = [pause_after(GatewayUnavailable(retry_after=10.0), 1, random.Random(seed)) for seed in range(50)]
    assert min(pauses) >= 10.0
    assert max(pauses) <= 11.0


class Flaky:
    """Fails as told, then answers."""

    def __init__(self, clock: VirtualClock, *errors: GatewayError) -> None:
        self._clock = clock
        self._errors = list(errors)
        self.tries: list[float] = []

    async def __call__(self) -> str:
        self.tries.append(self._clock.now())
        if self._errors:
            raise self._errors.pop(0)
        return "answer"


def make(clock: VirtualClock, until: Callable[[], float] = lambda: NEVER) -> Retries:
    return Retries(clock, random.Random(3), LOG, until=until)


@pytest.mark.anyio
async def test_repeats_until_it_works() -> None:
    """Passing failures are repeated, and the answer is the first one that came."""
    clock = VirtualClock()
    flaky = Flaky(clock, GatewayUnavailable(), GatewayUnavailable(retry_after=5.0))
    assert await make(clock)("context", flaky, within=60) == "answer"
    assert len(flaky.tries) == 3
    assert flaky.tries[1] <= 0.25
    assert 5.0 <= flaky.tries[2] - flaky.tries[1] <= 5.5


@pytest.mark.anyio
@pytest.mark.parametrize("error", [ClaimLost(), ContractError()])
async def test_what_is_not_passing_is_not_repeated(error: GatewayError) -> None:
    """Any other error passes through after one try."""
    clock = VirtualClock()
    flaky = Flaky(clock, error)
    with pytest.raises(type(error)):
        await make(clock)("context", flaky, within=60)
    assert len(flaky.tries) == 1


@pytest.mark.anyio
async def test_no_try_begins_too_late() -> None:
    """A back-off that would end past the bound is not waited for: the last error comes at once."""
    clock = VirtualClock()
    flaky = Flaky(clock, *[GatewayUnavailable("busy")] * 99)
    with pytest.raises(GatewayUnavailable, match="busy"):
        await make(clock)("result", flaky, within=100)
    assert clock.now() == max(flaky.tries) <= 100


@pytest.mark.anyio
async def test_told_pause_that_does_not_fit() -> None:
    """It is cut to half of what is left, again and again while that is a second; no try begins past the bound."""
    clock = VirtualClock()
    flaky = Flaky(clock, *[GatewayUnavailable("busy", retry_after=3600.0)] * 99)
    with pytest.raises(GatewayUnavailable, match="busy"):
        await make(clock)("result", flaky, within=64)
    assert flaky.tries == [0, 32, 48, 56, 60, 62, 63]


@given(st.text(), st.text())
def test_retry_after_takes_anything(told: str, sent: str) -> None:
    """Whatever stands in the headers, what comes of it is a bounded number or none."""
    seconds = retry_after({"retry-after": told, "date": sent})
    assert seconds is None or 0 <= seconds <= 3600


@pytest.mark.parametrize("told", ["Sun, 29 Nov 2026 10:00:30 +99999999999999999999", "Sun, 29 Nov 99999 10:00:00 GMT"])
def test_retry_after_out_of_range(told: str) -> None:
    """A date that no clock can show is none."""
    assert retry_after({"retry-after": told, "date": "Sun, 29 Nov 2026 10:00:00 GMT"}) is None


@pytest.mark.anyio
async def test_the_bound_may_move() -> None:
    """A deadline that moves earlier meanwhile counts."""
    clock = VirtualClock()
    flaky = Flaky(clock, *[GatewayUnavailable(retry_after=10.0)] * 9)
    with pytest.raises(GatewayUnavailable):
        await make(clock, lambda: 100.0 if clock.now() < 15 else 20.0)("end", flaky, within=NEVER)
    assert [moment <= 20.0 for moment in flaky.tries] == [True, True]


@pytest.mark.anyio
async def test_cancel_during_the_pause() -> None:
    """A cancel ends the pause at once and is not taken for a failure."""
    clock = VirtualClock()
    flaky = Flaky(clock, *[GatewayUnavailable(retry_after=1000.0)] * 9)
    with anyio.move_on_after(5) as scope:
        await make(clock)("end", flaky, within=NEVER)
    assert scope.cancelled_caught
    assert clock.now() == 5.0
    assert len(flaky.tries) == 1


@pytest.mark.anyio
async def test_cancel_during_the_call() -> None:
    """A cancel of the call itself passes through; it is not repeated."""
    clock = VirtualClock()
    calls = 0

    async def hang() -> str:
        nonlocal calls
        calls += 1
        await anyio.sleep_forever()
        return ""

    with anyio.move_on_after(5) as scope:
        await make(clock)("end", hang, within=NEVER)
    assert scope.cancelled_caught
    assert calls == 1
