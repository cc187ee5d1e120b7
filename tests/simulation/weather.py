"""The network between drivers and gateway: it delays, drops, repeats and reorders, as the seed says."""

import json
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx
from anyio.abc import TaskGroup
from pydantic import ValidationError

from driver.clock import Clock
from driver.gateway.client import HEAD_LEAVES
from driver.gateway.wire import Claim, Lease
from tests.driver.memory_gateway import MemoryGateway
from tests.simulation.history import History

_FATES: Final = (
    "refused",
    "slow_connection",
    "swallowed",
    "lost_request",
    "late_request",
    "lost_reply",
    "slow_reply",
    "twice",
    "status",
    "garbage",
    "cut",
)
_STATUSES: Final = (408, 429, 500, 502, 503, 504)
_RETRY_AFTER: Final = (None, "0", "1", "30", "86400", "-5", "soon", "Mon, 01 Jan 2001 00:00:00 GMT")

Serve = Callable[[], Awaitable[httpx.Response]]


class Weather:
    """How bad it is: `chance` is the share of requests to which something happens; `out` is a gateway that is away."""

    def __init__(self, seed: int, chance: float) -> None:
        self._seed = seed
        self.chance = chance
        self.out = False

    def draws(self, request: str) -> random.Random:
        """What decides over one request. Each has its own, so that no other order of the same moment changes it."""
        return random.Random(f"{self._seed} {request}")

    def fate(self, rng: random.Random) -> str:
        drawn = rng.choice(_FATES) if rng.random() < self.chance else "fair"
        return rng.choice(("refused", "swallowed")) if self.out else drawn


class Network(httpx.AsyncBaseTransport):
    """One driver's way to the gateway. Once `cut` is called nothing gets through any more: the driver is dead."""

    def __init__(
        self, name: str, gateway: MemoryGateway, weather: Weather, history: History, clock: Clock, tasks: TaskGroup
    ) -> None:
        self._name = name
        self._gateway = gateway
        self._weather = weather
        self._history = history
        self._clock = clock
        self._tasks = tasks
        self._dead = False
        self._counts: Counter[str] = Counter()

    def cut(self) -> None:
        self._dead = True

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        call = request.url.path.rpartition("/")[2]
        self._counts[call] += 1
        rng = self._weather.draws(f"{self._name} {call} {self._counts[call]}")
        told = {"call": call, "run": request.headers.get("x-agent-run"), "epoch": _epoch(request)}
        self._note("tries", **told)
        try:
            response = await self._carry(request, told, rng)
        except httpx.HTTPError as error:
            self._note("unheard", **told, error=type(error).__name__)
            raise
        self._note("heard", **{**told, "status": response.status_code, **self._heard(call, request, response)})
        # A fresh one: the content of a response can be streamed once.
        stream = httpx.ByteStream(response.content)
        return httpx.Response(response.status_code, headers=response.headers, stream=stream)

    async def _carry(self, request: httpx.Request, told: dict[str, Any], rng: random.Random) -> httpx.Response:
        fate = self._weather.fate(rng)
        if self._dead or fate == "refused":
            raise httpx.ConnectError("refused")
        if fate == "slow_connection":
            await self._clock.sleep(rng.uniform(0, 15))
        if "trace" in request.extensions:
            await request.extensions["trace"](HEAD_LEAVES, {})
        assert isinstance(request.stream, httpx.AsyncByteStream)
        body = b"".join([chunk async for chunk in request.stream])
        self._note("sent", **told, **_sent(told["call"], body), fate=None if fate == "fair" else fate)
        serve = self._serving(request, body, told)
        await self._clock.sleep(rng.uniform(0, 0.1))
        match fate:
            case "swallowed":
                await self._clock.sleep(request.extensions["timeout"]["read"] if told["run"] else math.inf)
                raise httpx.ReadTimeout("no answer in time")
            case "lost_request":
                raise httpx.ReadError("reset")
            case "late_request":
                self._tasks.start_soon(self._later, rng.uniform(0, 40), serve)
                raise httpx.ReadError("reset")
            case "status":
                return _status(rng)
            case "twice":
                await serve()
        response = await serve()
        await self._clock.sleep(rng.uniform(0, 20) if fate == "slow_reply" else rng.uniform(0, 0.1))
        if self._dead or fate == "lost_reply":
            raise httpx.ReadError("reset")
        if fate == "garbage":
            return httpx.Response(response.status_code, content=b"<html>oh no</html>")
        if fate == "cut":
            return httpx.Response(response.status_code, content=response.content[: len(response.content) // 2])
        return response

    def _serving(self, request: httpx.Request, body: bytes, told: dict[str, Any]) -> Serve:
        async def serve() -> httpx.Response:
            # It is on its way: nobody can look at it any more.
            asked = {name: value for name, value in request.extensions.items() if name != "trace"}
            again = httpx.Request(request.method, request.url, headers=request.headers, content=body, extensions=asked)
            response = await self._gateway.handle_async_request(again)
            content = await response.aread()
            served = httpx.Response(response.status_code, headers=response.headers, content=content)
            facts = {**told, "status": served.status_code, **_sent(told["call"], body)}
            facts |= self._heard(told["call"], request, served)
            if told["call"] == "end" and served.status_code == 200:
                facts["answer"] = json.loads(content)["result"]
            self._history.note("gateway", "served", to=self._name, **facts)
            return served

        return serve

    async def _later(self, seconds: float, serve: Serve) -> None:
        await self._clock.sleep(seconds)
        await serve()

    def _heard(self, call: str, request: httpx.Request, response: httpx.Response) -> dict[str, Any]:
        """What an answer grants or confirms, where it can be read."""
        if call == "result":
            return {"confirmed": response.headers.get("etag") == f'"{request.headers["content-digest"]}"' or None}
        if call not in ("next", "renew") or response.status_code != 200:
            return {}
        try:
            lease = (Claim if call == "next" else Lease).model_validate_json(response.content)
        except ValidationError:
            return {}
        assert lease.deadline is not None
        deadline = (lease.deadline - self._gateway.now()).total_seconds() + self._clock.now()
        told: dict[str, Any] = {"lease": lease.lease_seconds, "deadline": deadline}
        if isinstance(lease, Claim):
            told |= {"run": lease.run.id, "epoch": lease.run.epoch}
        return told

    def _note(self, what: str, **fields: Any) -> None:
        if not self._dead:
            self._history.note(self._name, what, **fields)


def _epoch(request: httpx.Request) -> int | None:
    value = request.headers.get("x-agent-epoch")
    return None if value is None else int(value)


def _sent(call: str, body: bytes) -> dict[str, Any]:
    if call != "end":
        return {}
    end = json.loads(body)
    return {"outcome": end["outcome"], "exit": end.get("exit")}


def _status(rng: random.Random) -> httpx.Response:
    retry_after = rng.choice(_RETRY_AFTER)
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return httpx.Response(rng.choice(_STATUSES), headers=headers, content=b"{}")
