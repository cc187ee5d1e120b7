"""The gateway client: each call as it goes over the wire, each row of the status table, each bound."""

import base64
import hashlib
import io
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from driver.clock import BootClock
from driver.errors import (
    ClaimInDoubt,
    ClaimLost,
    ContractError,
    GatewayError,
    GatewayRefused,
    GatewayUnavailable,
    TokenRejected,
    WorkErased,
)
from driver.gateway import wire
from driver.gateway.answer import ANSWER_BYTES, tls_context
from driver.gateway.client import GatewayClient, RunCalls
from driver.gateway.pull import NoWork, PullClient, Pulled
from tests.driver.gateway.receiving import all_of
from tests.driver.over_httpx import OverHttpx

pytestmark = pytest.mark.anyio

P = "http://10.0.0.7/internal/agent"
RUN = wire.Run(id="run-7f3a", kind="REVIEW", subject="review:42", epoch=3, attempt=1)
MESSAGES = Path(__file__).parents[2] / "contract" / "messages"
BODY = b"the result"
DIGEST = f"sha-256=:{base64.b64encode(hashlib.sha256(BODY).digest()).decode()}:"


def golden(name: str) -> Any:
    return json.loads((MESSAGES / f"{name}.json").read_text("utf-8"))


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayClient]:
    # The transport that respx answers for, also for downloads.
    network = httpx.AsyncHTTPTransport()
    async with GatewayClient("http://10.0.0.7", "the-token-0123", verify=False, network=network) as client:
        yield client


@pytest.fixture
async def pulls() -> AsyncIterator[PullClient]:
    async with pull_client(lambda: None) as client:
        yield client


def pull_client(on_answer: Callable[[], None]) -> PullClient:
    return PullClient(
        "http://10.0.0.7",
        "the-token-0123",
        clock=BootClock(),
        verify=False,
        on_answer=on_answer,
        network=OverHttpx("http://10.0.0.7"),
    )


@pytest.fixture
def calls(gateway: GatewayClient) -> RunCalls:
    return gateway.for_run(RUN, lambda: None)


@respx.mock
async def test_next(pulls: PullClient) -> None:
    """The pull names kinds and driver, carries the token, and is anchored at the moment it was sent."""
    route = respx.post(f"{P}/next").respond(200, json=golden("claim"))
    before = BootClock().now()
    pulled = (await pulls.next(["REVIEW", "REVIEW_COMPOSE"], wait=20)).read()
    assert isinstance(pulled, Pulled)
    assert pulled.claim.run == RUN
    assert before <= pulled.sent_at <= BootClock().now()
    request = route.calls.last.request
    assert json.loads(request.content) == golden("next_request")
    assert request.headers["authorization"] == "Bearer the-token-0123"
    assert request.headers["user-agent"] == "agent-sandbox-driver/0.1.0"
    assert request.headers["prefer"] == "wait=20"
    assert "x-agent-run" not in request.headers


@respx.mock
async def test_next_without_work(pulls: PullClient) -> None:
    """No work is not an error, and the gateway may say when to come back."""
    route = respx.post(f"{P}/next").respond(204, headers={"retry-after": "7"})
    assert (await pulls.next(["REVIEW"])).read() == NoWork(7.0)
    assert "prefer" not in route.calls.last.request.headers
    respx.post(f"{P}/next").respond(204)
    assert (await pulls.next(["REVIEW"])).read() == NoWork(None)


@respx.mock
async def test_calls_name_the_claim(calls: RunCalls) -> None:
    """Each call about a run names the run and the epoch, and reads its message."""
    run = f"{P}/runs/run-7f3a"
    routes = [
        respx.post(f"{run}/renew").respond(200, json=golden("lease")),
        respx.get(f"{run}/context").respond(200, json=golden("context_review")),
        respx.get(f"{run}/runtime").respond(200, json=golden("runtime")),
        respx.post(f"{run}/end").respond(200, json={"result": "ENDED"}),
    ]
    assert (await calls.renew(seconds=5)).lease_seconds == 120
    assert (await calls.context()).model.wire == "responses"
    assert (await calls.runtime()).upload_seconds == 600
    assert (await calls.end(wire.End(outcome="COMPLETED", exit=0))).result == "ENDED"
    for route in routes:
        headers = route.calls.last.request.headers
        assert (headers["x-agent-run"], headers["x-agent-epoch"]) == ("run-7f3a", "3")
    assert json.loads(routes[0].calls.last.request.content) == {}
    assert json.loads(routes[3].calls.last.request.content) == {
        "outcome": "COMPLETED",
        "exit": 0,
        "reason": None,
        "answer": None,
    }


@respx.mock
async def test_end_of_a_repeat(calls: RunCalls) -> None:
    """A repeated end reads ALREADY_ENDED, which is an answer like the first."""
    respx.post(f"{P}/runs/run-7f3a/end").respond(200, json={"result": "ALREADY_ENDED"})
    assert (await calls.end(wire.End(outcome="COMPLETED"))).result == "ALREADY_ENDED"


@respx.mock
async def test_workspace(calls: RunCalls) -> None:
    """The whole archive is asked for first, and its length, ETag and digest are what the answer says."""
    route = respx.get(f"{P}/runs/run-7f3a/runtime/workspace").respond(
        200, content=b"0123456789", headers={"etag": '"v1"', "repr-digest": DIGEST}
    )
    async with calls.workspace(0, None) as stream:
        assert (stream.offset, stream.etag, stream.length, stream.digest) == (0, '"v1"', 10, DIGEST)
        assert await all_of(stream) == b"0123456789"
    headers = route.calls.last.request.headers
    assert "range" not in headers
    assert headers["accept-encoding"] == "identity"


@respx.mock
async def test_workspace_resumes(calls: RunCalls) -> None:
    """A transfer goes on at its offset while the archive is still the same."""
    route = respx.get(f"{P}/runs/run-7f3a/runtime/workspace").respond(
        206, content=b"6789", headers={"etag": '"v1"', "content-range": "bytes 6-9/10"}
    )
    async with calls.workspace(6, '"v1"') as stream:
        assert (stream.offset, stream.length) == (6, 10)
        assert await all_of(stream) == b"6789"
    headers = route.calls.last.request.headers
    assert (headers["range"], headers["if-range"]) == ("bytes=6-", '"v1"')


@respx.mock
@pytest.mark.parametrize("content_range", ["bytes 5-9/10", "bytes 6-8/10", "bytes 6-9/*", ""])
async def test_workspace_of_another_range(calls: RunCalls, content_range: str) -> None:
    """A 206 that holds anything but the rest that was asked for is a contract error, not data."""
    respx.get(f"{P}/runs/run-7f3a/runtime/workspace").respond(
        206, content=b"6789", headers={"etag": '"v1"', "content-range": content_range}
    )
    with pytest.raises(ContractError, match="another range"):
        async with calls.workspace(6, '"v1"'):
            pass


@respx.mock
async def test_workspace_weak_etag_cannot_resume(calls: RunCalls) -> None:
    """A weak ETag identifies no bytes (RFC 9110, 13.1.5), so it is not kept."""
    respx.get(f"{P}/runs/run-7f3a/runtime/workspace").respond(200, content=b"x", headers={"etag": 'W/"v1"'})
    async with calls.workspace(0, None) as stream:
        assert stream.etag is None


@respx.mock
@pytest.mark.parametrize("status", [204, 409])
@pytest.mark.parametrize("etag", [f'"{DIGEST}"', f'"{hashlib.sha256(BODY).hexdigest()}"'])
async def test_result_is_confirmed(calls: RunCalls, status: int, etag: str) -> None:
    """The digest comes back as the ETag, of the first upload or of a repeat: both are success."""
    route = respx.post(f"{P}/runs/run-7f3a/runtime/result").respond(status, headers={"etag": etag})
    await calls.result(io.BytesIO(BODY), len(BODY), DIGEST, 3, seconds=60)
    request = route.calls.last.request
    assert request.content == BODY
    assert request.headers["content-length"] == "10"
    assert request.headers["content-digest"] == DIGEST
    assert request.headers["x-agent-exit"] == "3"
    assert request.headers["content-type"] == "application/x-tar"


@respx.mock
async def test_a_confirmation_stands_in_the_head(calls: RunCalls) -> None:
    """A body that is too large for an answer takes nothing from the confirmation."""
    page = b"x" * (5 << 20)
    respx.post(f"{P}/runs/run-7f3a/runtime/result").respond(200, headers={"etag": f'"{DIGEST}"'}, content=page)
    await calls.result(io.BytesIO(BODY), len(BODY), DIGEST, 0, seconds=60)


@respx.mock
async def test_what_is_no_json_passes(calls: RunCalls) -> None:
    """A page where JSON was due came from something before the gateway; the call is worth another try."""
    respx.get(f"{P}/runs/run-7f3a/runtime").respond(200, html="<html>one moment</html>")
    with pytest.raises(GatewayUnavailable, match="runtime: answered 200 with 23 bytes of no JSON"):
        await calls.runtime()


@respx.mock
async def test_result_is_sent_whole_each_time(calls: RunCalls) -> None:
    """A second try of the same content sends the same bytes, not what the first one left over."""
    content = io.BytesIO(BODY)
    route = respx.post(f"{P}/runs/run-7f3a/runtime/result").mock(
        side_effect=[httpx.ReadError("reset"), httpx.Response(204, headers={"etag": f'"{DIGEST}"'})]
    )
    with pytest.raises(GatewayUnavailable):
        await calls.result(content, len(BODY), DIGEST, 0, seconds=60)
    await calls.result(content, len(BODY), DIGEST, 0, seconds=60)
    assert [call.request.content for call in route.calls] == [BODY, BODY]


@respx.mock
@pytest.mark.parametrize(
    ("status", "etag", "error"),
    [
        (409, None, ClaimLost),
        (409, '"sha-256=:AAAA:"', ClaimLost),
        (409, f'W/"{DIGEST}"', ClaimLost),
        (204, None, GatewayUnavailable),
        (204, f'W/"{DIGEST}"', GatewayUnavailable),
        (204, '"something else"', GatewayUnavailable),
    ],
)
async def test_result_not_confirmed(calls: RunCalls, status: int, etag: str | None, error: type[GatewayError]) -> None:
    """Only a strong ETag equal to the digest confirms; any other 409 is a lost claim."""
    headers = {"etag": etag} if etag else {}
    respx.post(f"{P}/runs/run-7f3a/runtime/result").respond(status, headers=headers)
    with pytest.raises(error):
        await calls.result(io.BytesIO(BODY), len(BODY), DIGEST, 0, seconds=60)


Call = Callable[[PullClient, RunCalls], Awaitable[object]]


async def pull(pulls: PullClient, _: RunCalls) -> None:
    (await pulls.next(["REVIEW"])).read()


async def open_workspace(_: PullClient, calls: RunCalls) -> None:
    async with calls.workspace(0, None):
        raise AssertionError("a refused transfer is never entered")


EVERY_CALL: dict[str, Call] = {
    "next": pull,
    "renew": lambda _, calls: calls.renew(seconds=5),
    "context": lambda _, calls: calls.context(),
    "runtime": lambda _, calls: calls.runtime(),
    "workspace": open_workspace,
    "result": lambda _, calls: calls.result(io.BytesIO(BODY), len(BODY), DIGEST, 0, seconds=60),
    "end": lambda _, calls: calls.end(wire.End(outcome="FAILED")),
}

STATUS_TABLE: list[tuple[int, type[GatewayError]]] = [
    (301, GatewayRefused),
    (307, GatewayRefused),
    (400, GatewayRefused),
    (401, TokenRejected),
    (403, GatewayRefused),
    (404, GatewayRefused),
    (409, ClaimLost),
    (410, WorkErased),
    (413, GatewayRefused),
    (422, GatewayRefused),
    (429, GatewayUnavailable),
    (500, GatewayUnavailable),
    (502, GatewayUnavailable),
    (503, GatewayUnavailable),
    (504, GatewayUnavailable),
]


@respx.mock
@pytest.mark.parametrize("call", EVERY_CALL)
@pytest.mark.parametrize(("status", "error"), STATUS_TABLE)
async def test_status_table(
    pulls: PullClient, calls: RunCalls, call: str, status: int, error: type[GatewayError]
) -> None:
    """On each call each status means what the protocol's table says; a redirect is never followed."""
    elsewhere = respx.route(host="evil.example").respond(200)
    respx.route(host="10.0.0.7").respond(status, json=golden("problem"), headers={"location": "http://evil.example/"})
    with pytest.raises(error) as caught:
        await EVERY_CALL[call](pulls, calls)
    assert type(caught.value) is error
    assert str(status) in str(caught.value)
    assert not elsewhere.called


@respx.mock
@pytest.mark.parametrize("call", EVERY_CALL)
@pytest.mark.parametrize(
    "failure", [httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError, httpx.WriteError, httpx.PoolTimeout]
)
async def test_connection_failures_pass(
    pulls: PullClient, calls: RunCalls, call: str, failure: type[httpx.TransportError]
) -> None:
    """Whatever goes wrong with a connection is passing, and names the call."""
    respx.route(host="10.0.0.7").mock(side_effect=failure("broken"))
    with pytest.raises(GatewayUnavailable, match=call):
        await EVERY_CALL[call](pulls, calls)


@respx.mock
@pytest.mark.parametrize("body", [b"", b"not json", b"[" * 10_000, b"\xff\xfe", b'{"code": 7}'])
async def test_status_decides_whatever_the_body(calls: RunCalls, body: bytes) -> None:
    """A body that is no problem document changes nothing."""
    respx.get(f"{P}/runs/run-7f3a/context").respond(410, content=body)
    with pytest.raises(WorkErased):
        await calls.context()


@respx.mock
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"leasedUntil": "2026-11-29T10:02:00"}, "leasedUntil"),
        ({"leasedUntil": None}, "leasedUntil"),
        ({"now": 17}, "now"),
        ({"run": {"id": "run", "kind": "REVIEW", "subject": "s", "epoch": "1", "attempt": 0}}, "run.epoch"),
        ({"run": {"id": "..", "kind": "REVIEW", "subject": "s", "epoch": 1, "attempt": 0}}, "run.id"),
        ({"run": {"id": "", "kind": "REVIEW", "subject": "s", "epoch": 1, "attempt": 0}}, "run.id"),
        ({"run": {"id": "run/../x", "kind": "REVIEW", "subject": "s", "epoch": 1, "attempt": 0}}, "run.id"),
        ({"run": {"id": "run", "kind": "REVIEW", "subject": "s", "epoch": 0, "attempt": 0}}, "run.epoch"),
        ({"run": None}, "run"),
    ],
)
async def test_contract_error_names_the_field(pulls: PullClient, change: dict[str, Any], field: str) -> None:
    """A missing or wrong field is a contract error that names it."""
    respx.post(f"{P}/next").respond(200, json=golden("claim") | change)
    with pytest.raises(ContractError, match=rf"next: {field}: "):
        (await pulls.next(["REVIEW"])).read()


@respx.mock
async def test_answer_is_bounded(calls: RunCalls) -> None:
    """An answer past the bound is refused with the number, and a huge refusal is still a refusal."""
    respx.get(f"{P}/runs/run-7f3a/context").respond(200, content=b" " * (ANSWER_BYTES + 1))
    with pytest.raises(ContractError, match="larger than 4,194,304 bytes"):
        await calls.context()
    respx.get(f"{P}/runs/run-7f3a/context").respond(403, content=b" " * (ANSWER_BYTES + 1))
    with pytest.raises(GatewayRefused):
        await calls.context()


@respx.mock
@pytest.mark.parametrize("call", ["context", "runtime", "workspace", "result", "end"])
async def test_nothing_is_sent_for_a_claim_in_doubt(pulls: PullClient, gateway: GatewayClient, call: str) -> None:
    """The fence is asked right before each call about a run; when it refuses, no request leaves."""
    route = respx.route(host="10.0.0.7").respond(204)

    def in_doubt() -> None:
        raise ClaimInDoubt

    with pytest.raises(ClaimInDoubt):
        await EVERY_CALL[call](pulls, gateway.for_run(RUN, in_doubt))
    assert not route.called


@respx.mock
async def test_every_answer_is_a_positive_control() -> None:
    """`on_answer` hears of each answer, of a refusal too, and of no failed connection."""
    heard: list[str] = []
    async with pull_client(lambda: heard.append("x")) as pulls:
        respx.post(f"{P}/next").mock(side_effect=[httpx.ConnectError("no"), httpx.Response(500), httpx.Response(204)])
        for _ in range(2):
            with pytest.raises(GatewayUnavailable):
                (await pulls.next(["REVIEW"])).read()
        (await pulls.next(["REVIEW"])).read()
    assert heard == ["x", "x"]


def test_tls_context() -> None:
    """Plain http needs no verification; https verifies against the system's store."""
    assert tls_context("http://10.0.0.7", None) is False
    context = tls_context("HTTPS://10.0.0.7", None)
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
