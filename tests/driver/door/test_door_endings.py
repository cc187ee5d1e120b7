"""Every way in which a call can end badly: what the program sees, and that everything comes back."""

import json
import random
import socket
from collections.abc import Callable
from typing import Any

import anyio
import httpx
import pytest

from driver.door.permits import Budgets, Storage, TransportPermits
from driver.door.upstream import UpstreamTimeouts
from driver.http1 import Exchange
from tests.driver.door.support import (
    COMPLETED,
    DELTA,
    MODEL,
    Answering,
    Scene,
    held_until,
    reply,
    scene,
    sse,
)

pytestmark = pytest.mark.anyio

STREAM = [("content-type", "text/event-stream")]
PATHS = ["/v1/responses", "/v1/chat/completions", "/v1/messages"]


def cut_after(*parts: bytes, headers: list[tuple[str, str]] | None = None, reset: bool = False) -> Answering:
    async def answer(exchange: Exchange) -> None:
        await exchange.start(200, STREAM if headers is None else headers)
        for part in parts:
            await exchange.send(part)
        await exchange.abort(reset=reset)

    return answer


async def read_broken(here: Scene, path: str = "/v1/responses") -> bytes:
    """What the program got before its client saw the answer break."""
    got = bytearray()

    async def read() -> None:
        async with here.stream(path) as answer:
            async for part in answer.aiter_raw():
                got.extend(part)

    with pytest.raises(httpx.RemoteProtocolError):
        await read()
    return bytes(got)


@pytest.mark.parametrize("key", ["x", "wrong", "wrong-but-as-long-as-a-real-key-would-be-xx", "k\xe9y"])
@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
async def test_wrong_key_is_refused(header: str, key: str) -> None:
    """Without the run's key nothing passes, whatever header it stands in."""
    async with scene(reply(200, b"{}")) as here:
        value = f"Bearer {key}" if header == "authorization" else key
        async with httpx.AsyncClient(base_url=here.door.url, trust_env=False) as client:
            answer = await client.post(
                "/v1/responses", json={"model": MODEL}, headers=[(header.encode(), value.encode("latin-1"))]
            )
        assert (answer.status_code, answer.json()["code"]) == (401, "door_key")
        assert here.provider.requests == []


async def test_key_is_taken_from_both_headers() -> None:
    """The key counts as a bearer token and as `x-api-key`."""
    async with scene(reply(200, b"{}")) as here, httpx.AsyncClient(base_url=here.door.url, trust_env=False) as client:
        for headers in ({"authorization": f"bearer {here.door.key}"}, {"x-api-key": here.door.key}):
            assert (await client.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/files", 404, "not_found"),
        ("POST", "/v1/responses/", 404, "not_found"),
        ("GET", "/v1/responses", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
    ],
)
async def test_other_paths_and_methods_are_refused(method: str, path: str, status: int, code: str) -> None:
    """Only the routes of the door exist."""
    async with scene(reply(200, b"{}")) as here:
        answer = await here.client.request(method, path)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert ("allow" in answer.headers) == (status == 405)
        assert here.provider.requests == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"other"}',
        b'{"model":"model-1","model":"other"}',
        b'{"model":"other","model":"model-1"}',
        b'{"model":"model-1","m\\u006Fdel":"other"}',
        b'{"model":["model-1"]}',
        b'{"model":null}',
        b'{"input":{"model":"model-1"}}',
        b'{"input":"\\"model\\":\\"model-1\\""}',
        b'[{"model":"model-1"}]',
        json.dumps({"model": MODEL}).encode("utf-16"),
        b"{}",
    ],
)
async def test_only_the_runs_model_passes(body: bytes) -> None:
    """A request that does not name the run's model, once and at the top, reaches no provider."""
    async with scene(reply(200, b"{}")) as here:
        answer = await here.client.post("/v1/responses", content=body)
        assert (answer.status_code, answer.json()["code"]) in ((403, "model_not_allowed"), (400, "malformed_request"))
        assert here.provider.requests == []


@pytest.mark.parametrize("path", PATHS)
async def test_refusals_have_the_shape_of_the_wire(path: str) -> None:
    """A refusal reads like one of the provider's, so that its clients understand it."""
    async with scene(reply(200, b"{}")) as here:
        told = (await here.post(path, model="other")).json()
        assert told["code"] == told["error"]["code"] == "model_not_allowed"
        assert told["error"]["type"] == "permission_error"
        assert told["error"]["message"] == f"the request's model must be {MODEL}"
        assert told.get("type") == ("error" if path == "/v1/messages" else None)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "malformed_request"),
        (b'{"model":"model-1"', 400, "malformed_request"),
        (b'{"model":"model-1"}]', 400, "malformed_request"),
        (b'{"model":"model-1","input":' + b"[" * 128 + b"]" * 128 + b"}", 413, "request_too_large"),
        (b'{"model":"model-1","input":[' + b"1," * 500_000 + b"1]}", 413, "request_too_large"),
    ],
)
async def test_requests_are_bounded_in_structure(body: bytes, status: int, code: str) -> None:
    """A request that is no JSON, too deep or of too many values reaches no provider."""
    async with scene(reply(200, b"{}")) as here:
        answer = await here.client.post("/v1/responses", content=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert here.provider.requests == []


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("extra", "status"), [(-1, 200), (0, 200), (1, 413)])
async def test_request_size_is_bounded(chunked: bool, extra: int, status: int) -> None:
    """16 MiB pass and one byte more does not, whether or not the length was announced."""
    body = b'{"model":"model-1","input":"'
    body += b"x" * ((16 << 20) + extra - len(body) - 2) + b'"}'

    async def parts() -> Any:
        yield body

    async with scene(reply(200, b"{}")) as here:
        answer = await here.client.post("/v1/responses", content=parts() if chunked else body)
        assert answer.status_code == status
        assert len(here.provider.bodies) == (status == 200)
        if status == 413:
            assert answer.json()["code"] == "request_too_large"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("reset", [False, True])
async def test_cut_stream_looks_cut(path: str, reset: bool) -> None:
    """An upstream that breaks off in mid-stream is a protocol error at the program, not a short answer."""
    async with scene(cut_after(DELTA, b"data: half", reset=reset)) as here:
        got = await read_broken(here, path)
        # A reset may overtake what was sent before it.
        assert got == DELTA or reset
        [released] = await here.lines.wait_for("model.call.released")
        assert (released["end"], released["active"]) == ("broken_off", 0)
        assert here.lines.named("model.call.broken")[0]["code"] == "gateway_broke_off"
        assert here.door.statistics()["brokenOff"] == 1


async def test_cut_stream_before_the_first_event_is_refused() -> None:
    """Where nothing was passed on yet, the program gets an honest 502 instead."""
    async with scene(cut_after(b"data: half")) as here:
        answer = await here.post()
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "gateway_broke_off")


@pytest.mark.parametrize("headers", [[], [("content-length", "100")]])
async def test_cut_whole_answer_looks_cut(headers: list[tuple[str, str]]) -> None:
    """A cut answer that is not streamed is a protocol error at the program too."""
    async with scene(cut_after(b'{"half":', headers=[("content-type", "application/json"), *headers])) as here:
        with pytest.raises(httpx.RemoteProtocolError):
            await here.post()


@pytest.mark.parametrize("path", PATHS)
async def test_clean_end_without_terminal_event_looks_cut(path: str) -> None:
    """A stream that ends cleanly but lacks its last event has broken off, even if its length was announced."""
    length = [("content-length", str(len(DELTA)))]

    async def answer(exchange: Exchange) -> None:
        await exchange.start(200, STREAM + (length if path == "/v1/messages" else []))
        await exchange.send(DELTA)
        await exchange.finish()

    async with scene(answer) as here:
        assert await read_broken(here, path) == DELTA
        await here.lines.wait_for("model.call.released")
        assert here.lines.named("model.call.broken")[0]["code"] == "answer_incomplete"


async def test_error_event_ends_a_stream() -> None:
    """A stream whose last event tells an error is whole: the program reads the error."""
    for path, frame in (
        ("/v1/responses", b'event: error\ndata: {"type":"error","message":"m"}\n\n'),
        ("/v1/chat/completions", b'data: {"error":{"message":"m"}}\n\n'),
        ("/v1/messages", b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n'),
    ):
        async with scene(sse(frame)) as here, here.stream(path) as answer:
            assert await answer.aread() == frame


async def test_unreachable_gateway_is_a_502() -> None:
    """Where nobody listens, the program gets a 502 that its client tries again."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        async with scene(reply(200, b"{}"), gateway_url=url) as here:
            answer = await here.post()
            assert (answer.status_code, answer.json()["code"]) == (502, "gateway_unreachable")
            assert "x-should-retry" not in answer.headers


@pytest.mark.parametrize("started", [False, True])
async def test_silent_gateway_is_cut(started: bool) -> None:
    """A gateway that sends nothing for too long is cut: 504 before the first byte, broken off after it."""
    gate = anyio.Event()
    timeouts = UpstreamTimeouts(first_byte=10 if started else 0.05, gap=0.05)
    answer = sse(DELTA, COMPLETED, gate=gate) if started else held_until(gate)
    async with scene(answer, timeouts=timeouts) as here:
        if started:
            assert await read_broken(here) == DELTA
        else:
            assert (await here.post()).status_code == 504
        await here.lines.wait_for("model.call.released")
        gate.set()


@pytest.mark.parametrize("when", ["before the answer", "in mid-stream"])
async def test_program_that_leaves_cancels_the_provider(when: str) -> None:
    """When the program goes away, its permit comes back only after the upstream call has settled."""
    gate = anyio.Event()

    async def first_then_hold(exchange: Exchange) -> None:
        await exchange.start(200, STREAM)
        await exchange.send(DELTA)
        await exchange.wait_gone()
        await exchange.abort()

    async with scene(held_until(gate) if when == "before the answer" else first_then_hold) as here:
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                async with here.stream() as answer:
                    await answer.aread()

            tasks.start_soon(call)
            await here.provider.arrived.wait()
            await anyio.wait_all_tasks_blocked()
            assert here.budgets.transports.statistics().active == 1
            tasks.cancel_scope.cancel()
        [released] = await here.lines.wait_for("model.call.released")
        assert (released["end"], released["active"]) == ("abandoned", 0)
        with anyio.fail_after(5):
            await here.provider.settled.wait()
        assert here.door.statistics()["abandoned"] == 1


async def test_program_that_leaves_the_queue_frees_its_place() -> None:
    """A program that goes away while it waits leaves the queue, though its body was never read."""
    budgets = Budgets(transports=TransportPermits(active=1, queue=1))
    async with scene(reply(200, b"{}"), budgets=budgets) as here, budgets.transports.hold(lambda _: None):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(here.post)
            await here.lines.wait_for("model.call.waiting")
            tasks.cancel_scope.cancel()
        await here.lines.wait_for("model.call.abandoned")
        assert budgets.transports.statistics().waiting == 0


async def test_full_queue_is_refused() -> None:
    """Past the waiting places a call is refused at once, reaches no provider, and may come again in a second."""
    budgets = Budgets(transports=TransportPermits(active=1, queue=0))
    async with scene(reply(200, b"{}"), budgets=budgets) as here:
        async with budgets.transports.hold(lambda _: None):
            answer = await here.post(input="x" * 1_000_000)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            assert answer.json()["code"] == "local_capacity"
            assert here.provider.requests == []
            assert here.door.statistics()["refusals"] == {"local_capacity": 1}
        assert (await here.post()).status_code == 200


async def test_expired_wait_is_refused() -> None:
    """A call that waited its time is refused, and frees no work that is not done."""
    budgets = Budgets(transports=TransportPermits(active=1, queue=1, wait=0.05))
    async with scene(reply(200, b"{}"), budgets=budgets) as here, budgets.transports.hold(lambda _: None):
        answer = await here.post()
        assert (answer.status_code, answer.json()["code"]) == (429, "local_capacity")
        assert here.provider.requests == []
        assert budgets.transports.statistics().active == 1
        assert budgets.transports.statistics().waiting == 0


async def test_storage_that_is_full_is_refused() -> None:
    """A request whose bytes do not fit is refused before it is read, and takes nothing."""
    async with scene(reply(200, b"{}"), budgets=Budgets(storage=Storage(1_000_000))) as here:
        answer = await here.post(input="x" * 1_000_000)
        assert (answer.status_code, answer.json()["code"]) == (429, "local_capacity")
        assert here.provider.requests == []
        assert (await here.post(input="x" * 10_000)).status_code == 200


@pytest.mark.parametrize("status", [401, 409, 410])
async def test_lost_claim_closes_the_door(status: int) -> None:
    """Once the gateway refuses the claim, this call and all later ones are answered 409."""
    async with scene(reply(status, b"{}")) as here:
        for _ in range(2):
            answer = await here.post()
            assert (answer.status_code, answer.json()["code"]) == (409, "claim_lost")
            assert answer.headers["x-should-retry"] == "false"
        assert here.claims_refused == [status]
        assert len(here.provider.requests) == 1


async def test_departures_at_any_moment_leave_nothing() -> None:
    """Whenever programs go away, every permit and byte comes back once, and the queue moves on."""
    moments = random.Random(7)
    budgets = Budgets(transports=TransportPermits(active=3, queue=100))

    async def dripping(exchange: Exchange) -> None:
        await exchange.start(200, STREAM)
        for _ in range(20):
            await exchange.send(DELTA)
            await anyio.sleep(0.001)
        await exchange.send(COMPLETED)
        await exchange.finish()

    async def call(here: Scene, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await here.post(input="x" * 100_000)

    async with scene(dripping, budgets=budgets) as here:
        async with anyio.create_task_group() as tasks:
            for _ in range(60):
                tasks.start_soon(call, here, moments.uniform(0, 0.5))
        assert (await here.post()).status_code == 200
        await here.lines.wait_for("model.call.released", len(here.lines.named("model.call.accepted")))
        told = here.door.statistics()
        assert told["answered"] + told["abandoned"] == told["calls"]
        assert here.idle()


OVERSIZED: dict[str, tuple[Callable[[], tuple[bytes, ...]], str]] = {
    "frame": (lambda: (b"data: " + b"x" * (4 << 20) + b"\n\n",), "frame_too_large"),
    "answer": (lambda: (b"data: " + b"x" * 1_000_000 + b"\n\n",) * 68, "answer_too_large"),
    "nested": (
        lambda: (b'event: response.completed\ndata: {"response":' + b"[" * 200 + b"]" * 200 + b"}\n\n",),
        "malformed_frame",
    ),
    "invalid": (lambda: (b'event: response.completed\ndata: {"response":\n\n',), "malformed_frame"),
}


@pytest.mark.parametrize("case", OVERSIZED)
async def test_answers_are_bounded(case: str) -> None:
    """A frame or an answer past its bound breaks the call: 502 where nothing was passed on yet."""
    make, code = OVERSIZED[case]
    async with scene(sse(*make())) as here:
        if case == "answer":
            await read_broken(here)
            assert (await here.lines.wait_for("model.call.broken"))[0]["code"] == code
        else:
            answer = await here.post()
            assert (answer.status_code, answer.json()["code"]) == (502, code)
        await here.lines.wait_for("model.call.released")


async def test_encoded_stream_is_refused() -> None:
    """A stream that is encoded against our wish cannot be watched, so it is not passed."""

    async def answer(exchange: Exchange) -> None:
        await exchange.respond(200, [*STREAM, ("content-encoding", "gzip")], b"\x1f\x8b")

    async with scene(answer) as here:
        refused = await here.post()
        assert (refused.status_code, refused.json()["code"]) == (502, "encoded_answer")
