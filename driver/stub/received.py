"""A call that was received: who makes it, about which claim, and what strikes it."""

import re
from dataclasses import dataclass, field, replace
from typing import Final

from driver.http1 import Exchange, Request
from driver.stub.errors import Rejected, TokenNotAccepted
from driver.stub.fault_table import Place
from driver.stub.faults import Strikes
from driver.stub.numbers import whole_number

PREFIX: Final = "/internal/agent"

_RUN_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_RUN_CALL: Final = re.compile(r"/runs/([^/]+)/(.+)")
_CALLS: Final[dict[str, tuple[str, Place]]] = {
    "renew": ("POST", "renew"),
    "context": ("GET", "context"),
    "runtime": ("GET", "runtime"),
    "runtime/workspace": ("GET", "workspace"),
    "runtime/observations": ("POST", "observations"),
    "runtime/result": ("POST", "result"),
    "end": ("POST", "end"),
}
_MODEL: Final = "/model/v1/"
_MODEL_CALLS: Final[dict[str, str]] = {
    "responses": "POST",
    "chat/completions": "POST",
    "messages": "POST",
    "messages/count_tokens": "POST",
    "models": "GET",
}


@dataclass(frozen=True)
class Received:
    """One call. `run_id` and `epoch` are empty and 0 for `next`; `model_path` is what follows `/model/v1/`."""

    exchange: Exchange
    place: Place
    run_id: str = ""
    epoch: int = 0
    model_path: str = ""
    body: bytes = b""
    strikes: Strikes = field(default_factory=Strikes)

    @property
    def token(self) -> str:
        """The bearer token. Raises TokenNotAccepted without one."""
        scheme, _, token = (self.exchange.request.header("authorization") or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise TokenNotAccepted("a bearer token is required")
        return token.strip()

    def struck(self, strikes: Strikes) -> "Received":
        """The same call with the faults that strike it."""
        return replace(self, strikes=strikes)


def receive(exchange: Exchange, body: bytes) -> Received:
    """Read what a request asks for. Rejected: 404 and 405 for no such call, 400 for wrong claim headers."""
    request = exchange.request
    path = request.path.removeprefix(PREFIX)
    if path == "/next":
        _require_method(request, "POST")
        return Received(exchange, "next", body=body)
    if path.startswith(_MODEL) and (name := path.removeprefix(_MODEL)) in _MODEL_CALLS:
        _require_method(request, _MODEL_CALLS[name])
        run, epoch = _claim_headers(request)
        return Received(exchange, "model", run, epoch, model_path=name, body=body)
    match = _RUN_CALL.fullmatch(path)
    if match is None or match[2] not in _CALLS:
        raise Rejected(404, "call_unknown", "there is no such call")
    method, place = _CALLS[match[2]]
    _require_method(request, method)
    run, epoch = _claim_headers(request)
    if run != match[1]:
        raise Rejected(400, "claim_headers_wrong", "X-Agent-Run is not the run in the path")
    return Received(exchange, place, run, epoch, body=body)


def _require_method(request: Request, method: str) -> None:
    if request.method != method:
        raise Rejected(405, "method_not_allowed", f"the method is {method}", headers=(("allow", method),))


def _claim_headers(request: Request) -> tuple[str, int]:
    run, epoch = request.header("x-agent-run"), whole_number(request.header("x-agent-epoch"))
    if run is None or epoch is None or not _RUN_ID.fullmatch(run):
        raise Rejected(400, "claim_headers_missing", "X-Agent-Run and X-Agent-Epoch are required")
    return run, epoch
