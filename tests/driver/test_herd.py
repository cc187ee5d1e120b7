"""Two hundred drivers that started together while the gateway was away do not come back together.

They are two hundred loops with the real client, retries and pauses, in one process on virtual time; the network is in
memory, as two cores have no room for so many processes.
"""

from collections import Counter
from pathlib import Path

import anyio
import httpx
import pytest

from tests.driver.holding import Bench, stay
from tests.virtual_time import BACKEND, VirtualClock

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

DRIVERS = 200
# Long enough that the pauses have grown to their cap.
OUTAGE_SECONDS = 70.0
AFTER_SECONDS = 60.0
SHARE = 0.05


@pytest.fixture
def anyio_backend() -> object:
    return BACKEND


class Herded(httpx.AsyncBaseTransport):
    """A gateway without work: it refuses at first, one way or the other, and then holds each pull as long as it may."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.tries: list[float] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.tries.append(self._clock.now())
        if self._clock.now() < OUTAGE_SECONDS:
            if len(self.tries) % 2:
                raise httpx.ConnectError("refused", request=request)
            return httpx.Response(503, stream=httpx.ByteStream(b""))
        wait = request.headers.get("prefer", "wait=0").removeprefix("wait=")
        await self._clock.sleep(float(wait))
        return httpx.Response(204, stream=httpx.ByteStream(b""))

    def seconds(self, first: float, last: float) -> Counter[int]:
        """How many requests came in each second between two moments."""
        return Counter(int(moment) for moment in self.tries if first <= moment < last)


async def test_back_after_an_outage(tmp_path: Path) -> None:
    """No second of the minute after the outage has more than a twentieth of its requests."""
    clock = VirtualClock()
    network = Herded(clock)
    benches = [Bench(tmp_path, stay, clock=clock, network=network, seed=seed) for seed in range(DRIVERS)]
    async with anyio.create_task_group() as tasks:
        for bench in benches:
            tasks.start_soon(bench.loop)
        await clock.sleep(OUTAGE_SECONDS + AFTER_SECONDS)
        tasks.cancel_scope.cancel("the minute is over")
    found = network.seconds(OUTAGE_SECONDS, OUTAGE_SECONDS + AFTER_SECONDS)
    assert network.seconds(0, 1)[0] >= DRIVERS
    assert found.total() >= 2 * DRIVERS
    assert max(found.values()) <= SHARE * found.total()
