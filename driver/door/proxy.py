"""One exchange of the door, from its acceptance to the moment when all of it has settled."""

import hmac
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from driver.clock import Clock
from driver.door import requests
from driver.door.call import Call
from driver.door.codings import IDENTITY, REQUEST_BYTES, coding_of, decoded, decoding_bytes, too_large
from driver.door.headers import to_gateway
from driver.door.passing import PASSING_BYTES, Passing
from driver.door.permits import RETRY_AFTER, Budgets, PermitStatistics, Retained
from driver.door.refusals import refusal_answer
from driver.door.steps import in_step
from driver.door.tally import Tally
from driver.door.upstream import Answer, Upstream, UpstreamCall
from driver.door.wires import ROUTES, Route
from driver.errors import ClaimInDoubt, DoorRefusal
from driver.http1 import BodyStalled, ClientGone, Exchange, Request
from driver.log import Log

_CLAIM_REFUSED: Final = (401, 409, 410)
_BODY_STEP: Final = 256 * 1024


class Proxy:
    """Serves the programs of one run.

    `on_claim_refused` is called with the status when the gateway refuses the claim (401, 409, 410).
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        key: str,
        model: str,
        budgets: Budgets,
        tally: Tally,
        log: Log,
        clock: Clock,
        on_claim_refused: Callable[[int], None],
    ) -> None:
        self._upstream = upstream
        self._key = key.encode()
        self._model = model
        self._budgets = budgets
        self._tally = tally
        self._log = log
        self._clock = clock
        self._on_claim_refused = on_claim_refused
        self._claim_refused = False

    async def handle(self, exchange: Exchange) -> None:
        """Serve one exchange; when this returns or raises, nothing of it is left."""
        route = ROUTES.get(exchange.request.path)
        try:
            call = Call(self._admit(exchange.request, route), arrived=self._clock.now())
        except DoorRefusal as refusal:
            self._tally.calls += 1
            self._tally.refuse(refusal.code)
            self._log.warning("model.call.refused", status=refusal.status, code=refusal.code)
            await self._refuse(exchange, refusal, route)
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_when_gone, exchange, tasks.cancel_scope)
            try:
                await self._serve(exchange, call)
            finally:
                call.settle(self._tally, self._clock.now())
                call.log_end(self._log)
            tasks.cancel_scope.cancel()

    def _admit(self, request: Request, route: Route | None) -> Route:
        if not self._knows_key(request):
            raise DoorRefusal(401, "door_key", "the key of this run's door is required")
        if route is None:
            raise DoorRefusal(404, "not_found", f"the door serves {', '.join(ROUTES)}")
        if request.method not in route.methods:
            raise DoorRefusal(405, "method_not_allowed", f"{route.path} allows {', '.join(sorted(route.methods))}")
        if self._claim_refused:
            raise _claim_lost()
        if _announced(request) > REQUEST_BYTES:
            raise too_large()
        return route

    def _knows_key(self, request: Request) -> bool:
        bearer = (request.header("authorization") or "").partition(" ")
        given = (bearer[2].strip() if bearer[0].lower() == "bearer" else "", request.header("x-api-key") or "")
        # Both are always compared, so that the time tells nothing about either.
        known = [hmac.compare_digest(value.encode("latin-1"), self._key) for value in given]
        return any(known)

    async def _serve(self, exchange: Exchange, call: Call) -> None:
        with suppress(ClientGone):
            try:
                async with self._permit(call):
                    await self._carry_or_tell(exchange, call)
            except DoorRefusal as refusal:
                await self._give_up(exchange, call, refusal)

    async def _carry_or_tell(self, exchange: Exchange, call: Call) -> None:
        """Tell the program in here, so that its call holds the permit until the refusal is delivered."""
        try:
            await self._carry(exchange, call)
        except ClientGone:
            raise
        except DoorRefusal as refusal:
            await self._give_up(exchange, call, refusal)
        except ClaimInDoubt:
            self._claim_refused = True
            await self._give_up(exchange, call, _claim_lost())
        except Exception as error:
            # A call that the door cannot cope with must not end the door, and with it the run.
            self._log.error("model.call.failed", error=repr(error), traceback=traceback.format_exc())
            await self._give_up(exchange, call, DoorRefusal(500, "internal", "the door failed on this call"))

    @asynccontextmanager
    async def _permit(self, call: Call) -> AsyncIterator[None]:
        if not call.route.takes_permit:
            yield
            return
        try:
            async with self._budgets.transports.hold(partial(self._log_waiting, call)):
                self._accept(call)
                yield
        finally:
            if call.accepted is not None:
                self._log_released(call)

    def _accept(self, call: Call) -> None:
        call.accepted = self._clock.now()
        waited = round(call.accepted - call.arrived, 3)
        self._log.info("model.call.accepted", path=call.route.path, waited_seconds=waited, **self._counts())

    async def _carry(self, exchange: Exchange, call: Call) -> None:
        request = exchange.request
        with self._budgets.storage.retain() as retained:
            body = None if request.method in ("GET", "HEAD") else await _read_body(exchange, retained)
            if body is not None and call.route.names_model:
                await self._check(body, coding_of(request.all("content-encoding")), retained)
            if self._claim_refused:  # while this call waited
                raise _claim_lost()
            # Before the provider is reached: a refusal must not cost a turn.
            retained.resize(retained.held + PASSING_BYTES)
            headers = to_gateway(request.headers)
            query = request.target.partition("?")[2]
            async with self._upstream.open(
                UpstreamCall(request.method, call.route.path, query, headers, body)
            ) as answer:
                if body is not None:
                    body.clear()  # it is sent
                retained.resize(PASSING_BYTES)
                self._check_claim(answer)
                await Passing(exchange, call, answer, retained, self._budgets.parsing, self._clock).run()

    async def _check(self, body: bytearray, coding: str, retained: Retained) -> None:
        async with self._budgets.parsing.hold():
            held = retained.held
            retained.resize(held + decoding_bytes(coding))
            try:
                data = body if coding == IDENTITY else await in_step(len(body), lambda: decoded(body, coding))
                for _ in requests.checks(data, self._model):
                    await checkpoint()  # the next such step is for another turn of the event loop
            finally:
                retained.resize(held)

    def _check_claim(self, answer: Answer) -> None:
        if answer.status in _CLAIM_REFUSED:
            self._claim_refused = True
            self._on_claim_refused(answer.status)
            raise _claim_lost()

    async def _give_up(self, exchange: Exchange, call: Call, refusal: DoorRefusal) -> None:
        """Tell the program, or, where an answer has begun, let it look broken."""
        if exchange.started:
            call.broken_off(refusal.code)
            await exchange.abort()
            return
        call.refused(refusal.status, refusal.code)
        await self._refuse(exchange, refusal, call.route)

    async def _refuse(self, exchange: Exchange, refusal: DoorRefusal, route: Route | None) -> None:
        headers, body = refusal_answer(refusal, None if route is None else route.wire)
        if route is not None and refusal.status == 405:
            headers.append(("allow", ", ".join(sorted(route.methods))))
        await exchange.respond(refusal.status, headers, body)

    def _log_waiting(self, call: Call, counts: PermitStatistics) -> None:
        call.queued = True
        self._log.info("model.call.waiting", path=call.route.path, active=counts.active, waiting=counts.waiting)

    def _log_released(self, call: Call) -> None:
        seconds = self._clock.now() - call.arrived
        usage = call.usage
        self._log.info(
            "model.call.released",
            path=call.route.path,
            end=call.end.value,
            status=call.status,
            seconds=round(seconds, 3),
            input_tokens=usage and usage.input,
            output_tokens=usage and usage.output,
            **self._counts(),
        )

    def _counts(self) -> dict[str, int]:
        counts = self._budgets.transports.statistics()
        return {"active": counts.active, "waiting": counts.waiting}


async def _cancel_when_gone(exchange: Exchange, scope: anyio.CancelScope) -> None:
    await exchange.wait_gone()
    scope.cancel()


async def _read_body(exchange: Exchange, retained: Retained) -> bytearray:
    """The request body; each part is reserved before it is taken."""
    try:
        if exchange.request.header("content-length") is not None:
            retained.resize(_announced(exchange.request))
            body = bytearray(retained.held)
            await exchange.receive_into(body)
            return body
        return await _read_chunks(exchange, retained)
    except BodyStalled as error:
        raise DoorRefusal(408, "request_stalled", str(error), retry_after=RETRY_AFTER) from error


async def _read_chunks(exchange: Exchange, retained: Retained) -> bytearray:
    body = bytearray()
    while True:
        if len(body) + _BODY_STEP > retained.held:
            retained.resize(len(body) + 2 * _BODY_STEP)
        chunk = await exchange.receive()
        if not chunk:
            retained.resize(len(body))
            return body
        body += chunk
        if len(body) > REQUEST_BYTES:
            raise too_large()


def _announced(request: Request) -> int:
    return int(request.header("content-length") or 0)


def _claim_lost() -> DoorRefusal:
    return DoorRefusal(409, "claim_lost", "this run is not this sandbox's any more")
