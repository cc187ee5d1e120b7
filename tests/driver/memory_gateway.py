"""A gateway in memory: the stub's state behind an httpx transport, with a place for everything that goes wrong."""

import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import anyio
import httpx

from driver.clock import Clock
from driver.gateway.client import HEAD_LEAVES
from driver.gateway.wire import CONTRACT, Claim, Context, End, Lease, ModelChoice, NextRequest, Run, Runtime
from driver.stub.archive import Archive
from driver.stub.errors import Rejected
from driver.stub.remembered import from_json, to_json
from driver.stub.results import Result, digest_field
from driver.stub.runs import AgentRun
from driver.stub.scenario import parse_scenario
from driver.stub.state import GatewayState
from driver.stub.workspaces import Prepared

_START: Final = datetime(2026, 11, 29, 10, tzinfo=UTC)
_NO_DIGEST: Final = digest_field(hashlib.sha256(b"").digest())
_PREPARED: Final = Prepared(Archive(Path("/nowhere"), 0, _NO_DIGEST), None)

Serve = Callable[[], Awaitable[httpx.Response]]
Fault = Callable[[Serve], Awaitable[httpx.Response]]


@dataclass(frozen=True)
class Seen:
    """One request that arrived whole, and the moment of the driver's clock."""

    at: float
    call: str
    epoch: int
    headers: Mapping[str, str]


class MemoryGateway(httpx.AsyncBaseTransport):
    """Serves one GatewayState on `clock`.

    `faults` maps a call and its number (0 for every one) to what happens; `connecting` is called with each call before
    anything of it was sent; `taking` is how many seconds a call's body is on its way.
    """

    def __init__(self, clock: Clock, **tables: Any) -> None:
        self._clock = clock
        common = {"run": {"kind": "WORK", "attempts": 9, "retry_seconds": 0}, "sandbox": {"life_seconds": 1_000_000}}
        self.state = GatewayState(parse_scenario(common | tables), _PREPARED, now=self.now, key=bytes(32))
        self.token = self.state.sandboxes.token(self.state.sandbox)
        self.faults: dict[tuple[str, int], Fault] = {}
        self.connecting: Callable[[str], None] = lambda call: None
        self.taking: dict[str, float] = {}
        self.seen: list[Seen] = []
        self._counts: Counter[str] = Counter()

    def now(self) -> datetime:
        return _START + timedelta(seconds=self._clock.now())

    def restart(self) -> None:
        """Another gateway goes on from what this one has written down."""
        before = from_json(to_json(self.state.remember()), list(self.state.results))
        self.state = GatewayState(self.state.scenario, _PREPARED, now=self.now, key=bytes(32), before=before)
        self.token = self.state.sandboxes.token(self.state.sandbox)

    def calls(self, *names: str) -> list[Seen]:
        """What arrived, of these calls."""
        return [seen for seen in self.seen if seen.call in names]

    @property
    def run(self) -> AgentRun:
        """The first run."""
        return next(iter(self.state.runs))

    @property
    def ends(self) -> list[End]:
        """The ends that were taken."""
        return [end for _, _, end in self.state.ends]

    @property
    def exits(self) -> list[int]:
        """The exits of the results that were kept."""
        return [result.exit for result in self.state.results]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        call = request.url.path.rpartition("/")[2]
        self._counts[call] += 1
        self.connecting(call)
        if "trace" in request.extensions:
            await request.extensions["trace"](HEAD_LEAVES, {})
        assert isinstance(request.stream, httpx.AsyncByteStream)
        await self._clock.sleep(self.taking.get(call, 0.0))
        body = b"".join([chunk async for chunk in request.stream])
        epoch = int(request.headers.get("x-agent-epoch", 0))
        self.seen.append(Seen(self._clock.now(), call, epoch, request.headers))

        async def serve() -> httpx.Response:
            await anyio.lowlevel.checkpoint()
            return self._serve(call, request, body)

        fault = self.faults.get((call, self._counts[call])) or self.faults.get((call, 0))
        silence = None if call == "next" else request.extensions["timeout"]["read"]
        try:
            with anyio.fail_after(silence):
                answer = await (serve() if fault is None else fault(serve))
        except TimeoutError as error:
            raise httpx.ReadTimeout("no answer in time") from error
        return httpx.Response(answer.status_code, headers=answer.headers, stream=httpx.ByteStream(answer.content))

    def _serve(self, call: str, request: httpx.Request, body: bytes) -> httpx.Response:
        try:
            sandbox = self.state.sandboxes.admit(request.headers["authorization"].removeprefix("Bearer "))
            if call == "next":
                run = self.state.claim(sandbox, NextRequest.model_validate_json(body).kinds)
                return httpx.Response(204) if run is None else _json(self._claim(run))
            run_id, epoch = request.headers["x-agent-run"], int(request.headers["x-agent-epoch"])
            if call == "end":
                return _json(self.state.end(sandbox, run_id, epoch, End.model_validate_json(body)))
            if call == "result":
                return self._result(run_id, epoch, request, body)
            if call == "renew":
                run = self.state.runs.renew(run_id, epoch)
                return _json(Lease(**self._times(run)))
            run = self.state.require_claim(sandbox, run_id, epoch)
            return _json(self._context(run) if call == "context" else self._runtime(run))
        except Rejected as rejected:
            return httpx.Response(
                rejected.status, headers=dict(rejected.headers), content=json.dumps({"code": rejected.code})
            )

    def _result(self, run_id: str, epoch: int, request: httpx.Request, body: bytes) -> httpx.Response:
        self.state.results.require_new(run_id, epoch)
        self.state.runs.require_current(run_id, epoch)
        digest = digest_field(hashlib.sha256(body).digest())
        result = Result(run_id, epoch, int(request.headers["x-agent-exit"]), digest, body)
        self.state.results.keep(result, request.headers["content-digest"])
        return httpx.Response(204, headers={"etag": result.etag})

    def _claim(self, run: AgentRun) -> Claim:
        terms = run.terms
        named = Run(id=terms.id, kind=terms.kind, subject=terms.subject, epoch=run.epoch, attempt=run.attempt)
        return Claim(run=named, **self._times(run))

    def _times(self, run: AgentRun) -> dict[str, Any]:
        return {"now": self.now(), "leased_until": run.leased_until, "deadline": run.deadline}

    def _context(self, run: AgentRun) -> Context:
        seconds = self.state.table(run).work_seconds
        return Context(kind=run.terms.kind, model=ModelChoice(id="m", wire="chat"), work_seconds=seconds)

    def _runtime(self, run: AgentRun) -> Runtime:
        return Runtime(
            contract=CONTRACT,
            workspace_bytes=0,
            workspace_digest=_NO_DIGEST,
            result_bytes=1 << 20,
            upload_seconds=self.state.table(run).upload_seconds,
        )


def _json(message: Any) -> httpx.Response:
    return httpx.Response(200, content=message.model_dump_json())


def status(number: int, **headers: str) -> Fault:
    """An answer of that status; what was asked for is not done."""

    async def fault(_: Serve) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.Response(number, headers=named, content=b"{}")

    return fault


def body(content: bytes) -> Fault:
    """What was asked for is done, and the answer's body is something else."""

    async def fault(serve: Serve) -> httpx.Response:
        return httpx.Response((await serve()).status_code, content=content)

    return fault


async def lost_reply(serve: Serve) -> httpx.Response:
    """What was asked for is done, and its answer never arrives."""
    await serve()
    raise httpx.ReadError("reset")


async def unreachable(_: Serve) -> httpx.Response:
    """Nobody is there."""
    raise httpx.ConnectError("refused")


async def swallowed(_: Serve) -> httpx.Response:
    """The packets go nowhere."""
    await anyio.sleep_forever()
    raise AssertionError


def late(seconds: float) -> Fault:
    """The answer takes its time."""

    async def fault(serve: Serve) -> httpx.Response:
        response = await serve()
        await anyio.sleep(seconds)
        return response

    return fault


def meanwhile(happens: Callable[[], object]) -> Fault:
    """Something happens while the request is on its way; then it is served."""

    async def fault(serve: Serve) -> httpx.Response:
        happens()
        return await serve()

    return fault


def afterwards(happens: Callable[[], object]) -> Fault:
    """Something happens while the answer is on its way."""

    async def fault(serve: Serve) -> httpx.Response:
        response = await serve()
        happens()
        return response

    return fault
