"""What the stub shows of itself: `/stub/state`, `/stub/events` and `/stub/results/{run}`."""

import json
from typing import Final

from driver.http1 import Exchange
from driver.stub.answers import Answer, json_answer, send
from driver.stub.errors import Rejected
from driver.stub.faults import Strikes
from driver.stub.numbers import whole_number
from driver.stub.state import GatewayState

PREFIX: Final = "/stub/"


class Observe:
    """Read only, and without a token: the stub listens on loopback, and no token is in what it shows."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state

    async def serve(self, exchange: Exchange) -> None:
        """Answer one request. Raises Rejected for what is not there."""
        request = exchange.request
        name, _, rest = request.path.removeprefix(PREFIX).partition("/")
        if request.method != "GET":
            raise Rejected(405, "method_not_allowed", "the method is GET", headers=(("allow", "GET"),))
        if name == "state" and not rest:
            await send(exchange, json_answer(self._state.as_json()), Strikes())
        elif name == "events" and not rest:
            await self._events(exchange)
        elif name == "results" and rest:
            await send(exchange, self._result(rest), Strikes())
        else:
            raise Rejected(404, "not_found", "there is no such page")

    async def _events(self, exchange: Exchange) -> None:
        """The journal as server-sent events, from the start or after Last-Event-ID (WHATWG HTML, 9.2)."""
        last = whole_number(exchange.request.header("last-event-id")) or 0
        await exchange.start(200, (("content-type", "text/event-stream"), ("cache-control", "no-store")))
        async for entry in self._state.journal.follow(last):
            data = json.dumps(entry.as_json(), ensure_ascii=False)
            await exchange.send(f"id: {entry.number}\nevent: {entry.event}\ndata: {data}\n\n".encode())

    def _result(self, run: str) -> Answer:
        """The archive that the newest claim of a run delivered."""
        result = self._state.results.newest(run)
        if result is None:
            raise Rejected(404, "no_result", "this run has no result")
        headers = (
            ("content-type", "application/x-tar"),
            ("etag", result.etag),
            ("x-agent-exit", str(result.exit)),
            ("x-agent-epoch", str(result.epoch)),
        )
        return Answer(200, headers, result.body)
