"""The stub over HTTP: every request is admitted, struck by its faults, fenced, served and written down."""

import contextlib
import traceback
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

import anyio
import anyio.lowlevel

from driver.http1 import BodyStalled, ClientGone, Exchange
from driver.stub import observe, received
from driver.stub.answers import Answer, problem, send
from driver.stub.calls import MIB, RESULT_BYTES, Calls
from driver.stub.errors import Rejected
from driver.stub.faults import Strikes
from driver.stub.model.script import WIRES
from driver.stub.model_calls import ModelCalls
from driver.stub.provider import Provider
from driver.stub.received import Received, receive
from driver.stub.state import GatewayState

_BODY_BYTES: Final = 16 * MIB
_NOTED_CHARACTERS: Final = 200


class App:
    """Serves one GatewayState; `handle` is the handler of a server.

    Before a call that changed something is answered, `keep` is called and waited for.
    """

    def __init__(
        self,
        state: GatewayState,
        *,
        provider: Provider | None = None,
        results: Path | None = None,
        keep: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint_if_cancelled,
    ) -> None:
        self._state = state
        self._keep = keep
        self._observe = observe.Observe(state)
        self._model = ModelCalls(state, provider)
        calls = Calls(state, results)
        self._serve: dict[str, Callable[[Received], Awaitable[Answer]]] = {
            "next": calls.next,
            "renew": calls.renew,
            "context": calls.context,
            "runtime": calls.runtime,
            "workspace": calls.workspace,
            "observations": calls.observations,
            "result": calls.result,
            "end": calls.end,
        }

    async def handle(self, exchange: Exchange) -> None:
        """Serve one exchange to its end. It is given up when the client goes away."""
        # The whole body first: a refusal in mid-upload would be lost in the reset that follows it.
        try:
            body = await self._body(exchange)
        except Rejected as rejected:
            self._refused(exchange, rejected)
            await self._say(exchange, rejected)
            return
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                await exchange.wait_gone()
                tasks.cancel_scope.cancel("the client has gone")
                self._state.journal.record("request.abandoned", path=_noted(exchange.request.path))

            tasks.start_soon(watch)
            with contextlib.suppress(ClientGone):
                await self._answer(exchange, body)
            tasks.cancel_scope.cancel("served")

    async def _body(self, exchange: Exchange) -> bytes:
        """The whole body. Rejected: 413 when it is too long, 408 when it stops coming. Raises ClientGone."""
        limit = RESULT_BYTES if exchange.request.path.endswith("/runtime/result") else _BODY_BYTES
        try:
            body = await exchange.read(limit)
        except BodyStalled as error:
            raise Rejected(408, "body_too_slow", str(error)) from None
        if body is None:
            raise Rejected(413, "body_too_large", f"more than {limit:,} bytes")
        return body

    async def _answer(self, exchange: Exchange, body: bytes) -> None:
        try:
            if exchange.request.path.startswith(observe.PREFIX):
                await self._observe.serve(exchange)
            elif exchange.request.path.startswith(received.PREFIX + "/"):
                await self._gateway(receive(exchange, body))
            else:
                raise Rejected(404, "not_found", "there is nothing here")
        except Rejected as rejected:
            self._refused(exchange, rejected)
            await self._say(exchange, rejected)
        except ClientGone:
            self._state.journal.record("request.abandoned", path=_noted(exchange.request.path))
        except Exception:
            # One call that the stub cannot cope with must not end all the others.
            self._state.journal.record(
                "request.failed", path=_noted(exchange.request.path), error=traceback.format_exc()
            )
            await self._say(exchange, Rejected(500, "internal", "the stub failed; /stub/events tells where"))

    async def _say(self, exchange: Exchange, rejected: Rejected) -> None:
        """The problem document; an answer that has begun is broken off instead."""
        if exchange.started:
            await exchange.abort()
        else:
            await send(exchange, problem(rejected), Strikes())

    async def _gateway(self, call: Received) -> None:
        """One call of docs/protocol.md. The faults come in the order in which a real gateway could break."""
        self._state.sandboxes.admit(call.token)
        if call.place != "model" or call.model_path in WIRES:
            call = call.struck(self._state.faults.strike(call.place))
        self._write_down(call)
        self._strike_state(call)
        if call.strikes.names:
            await self._keep()
        if not await self._strike_exchange(call):
            return
        try:
            await self._fenced(call)
        except Rejected:
            # A refusal can tell of what was done before, as that a result stands already.
            await self._keep()
            raise

    async def _fenced(self, call: Received) -> None:
        sandbox = self._state.sandboxes.admit(call.token)
        if call.run_id:
            self._state.require_subject(sandbox, call.run_id)
        self._strike_status(call)
        if call.place == "model":
            async with self._model.answer(call) as answer:
                await self._send(call, answer)
        else:
            await self._send(call, await self._serve[call.place](call))

    def _strike_state(self, call: Received) -> None:
        state, strikes = self._state, call.strikes
        if "revoke" in strikes:
            state.sandboxes.take_back(state.sandboxes.admit(call.token))
        if "withdraw" in strikes:
            state.withdraw(call.run_id)
        if "take_away" in strikes:
            state.runs.take_away(call.run_id)
        if (fault := strikes.get("deadline_in")) and fault.seconds is not None:
            state.runs.move_deadline(call.run_id, state.now() + timedelta(seconds=fault.seconds))

    async def _strike_exchange(self, call: Received) -> bool:
        """False when the fault has ended the exchange."""
        if (delay := call.strikes.get("delay")) and delay.seconds:
            await anyio.sleep(delay.seconds)
        if (stall := call.strikes.get("stall")) and stall.bytes is None:
            await anyio.sleep_forever()
        if "reset" in call.strikes:
            await call.exchange.abort(reset=True)
            return False
        return True

    def _strike_status(self, call: Received) -> None:
        fault = call.strikes.get("status")
        if fault is None or fault.status is None:
            return
        headers = (("retry-after", fault.retry_after),) if fault.retry_after else ()
        raise Rejected(fault.status, "fault", "a fault of the scenario", headers=headers)

    async def _send(self, call: Received, answer: Answer) -> None:
        self._state.journal.record(
            "request.answered",
            call=call.place,
            nth=call.strikes.nth,
            run=call.run_id,
            epoch=call.epoch,
            status=answer.status,
        )
        await self._keep()
        await send(call.exchange, answer, call.strikes)

    def _write_down(self, call: Received) -> None:
        runs = {run.terms.id: run for run in self._state.runs}
        run = runs.get(call.run_id)
        self._state.journal.record(
            "request.received",
            call=call.place,
            nth=call.strikes.nth,
            run=call.run_id,
            epoch=call.epoch,
            path=_noted(call.exchange.request.path),
            bytes=len(call.body),
            faults=call.strikes.names,
            held=run.as_json() if run else None,
        )

    def _refused(self, exchange: Exchange, rejected: Rejected) -> None:
        self._state.journal.record(
            "request.refused",
            method=_noted(exchange.request.method),
            path=_noted(exchange.request.path),
            status=rejected.status,
            code=rejected.code,
            detail=rejected.detail,
        )


def _noted(text: str) -> str:
    """What the journal, which keeps many entries, keeps of a text of unknown length."""
    return text[:_NOTED_CHARACTERS]
