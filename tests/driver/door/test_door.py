"""The door between real programs and a real gateway: what passes, and that it passes unchanged."""

import gzip
import json
import socket
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from anyio.lowlevel import checkpoint

from driver.clock import BootClock
from driver.door.passing import PASSING_BYTES
from driver.door.permits import Budgets, ParsingPermit, TransportPermits
from driver.door.server import open_door
from driver.door.upstream import Upstream
from driver.http1 import Exchange
from tests.driver.door.support import (
    COMPLETED,
    CREATED,
    DELTA,
    MODEL,
    TOKEN,
    Lines,
    held_until,
    reply,
    scene,
    sse,
)

pytestmark = pytest.mark.anyio

CHAT = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":null}]}\r\n\r\n',
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":null}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":7}}\n\n',
    b"data: [DONE]\n\n",
)
MESSAGE_START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":4,'
    b'"cache_read_input_tokens":7,"cache_creation_input_tokens":null,"output_tokens":1}}}\n\n'
)
MESSAGES = (
    MESSAGE_START,
    b": keep-alive\n\n",
    b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"hi"}}\n\n',
    b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":7}}\n\n',
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
)
STREAMS = {
    "/v1/responses": (CREATED, DELTA, COMPLETED),
    "/v1/chat/completions": CHAT,
    "/v1/messages": MESSAGES,
}
WHOLES = {
    "/v1/responses": b'{"output":[{"text":"\\u00e9 \\"usage\\": {"}],"usage":{"input_tokens":11,"output_tokens":7} }',
    "/v1/chat/completions": b'{"choices":[ ],"usage":{"prompt_tokens":11,"completion_tokens":7}}\n',
    "/v1/messages": b'{"content":[],"usage":{"input_tokens":5,"cache_read_input_tokens":6,"output_tokens":7}}',
}


@pytest.mark.parametrize("path", STREAMS)
async def test_streamed_answer_passes_unchanged(path: str) -> None:
    """On each wire the program gets the bytes of the stream as they are, and the run's tokens are counted."""
    async with scene(sse(*STREAMS[path])) as here:
        async with here.stream(path) as answer:
            assert b"".join([part async for part in answer.aiter_raw()]) == b"".join(STREAMS[path])
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        [released] = await here.lines.wait_for("model.call.released")
        assert (released["input_tokens"], released["output_tokens"], released["end"]) == (11, 7, "answered")
        told = here.door.statistics()
        assert (told["inputTokens"], told["outputTokens"], told["answered"], told["unmeasured"]) == (11, 7, 1, 0)
        assert told["firstContents"] == 1


@pytest.mark.parametrize("path", WHOLES)
async def test_whole_answer_passes_unchanged(path: str) -> None:
    """On each wire an answer that is not streamed keeps its bytes and its length, and its tokens are counted."""
    async with scene(reply(200, WHOLES[path], ("x-request-id", "q1"))) as here:
        answer = await here.post(path)
        assert (answer.status_code, answer.content) == (200, WHOLES[path])
        assert answer.headers["content-length"] == str(len(WHOLES[path]))
        assert answer.headers["x-request-id"] == "q1"
        await here.lines.wait_for("model.call.released")
        told = here.door.statistics()
        assert (told["calls"], told["answered"], told["inputTokens"], told["outputTokens"]) == (1, 1, 11, 7)


async def test_frames_arrive_as_they_are_sent() -> None:
    """A frame is with the program while the provider still thinks about the next one."""
    gate = anyio.Event()
    async with scene(sse(DELTA, COMPLETED, gate=gate)) as here:
        async with here.stream() as answer:
            parts = answer.aiter_raw()
            with anyio.fail_after(5):
                assert await anext(parts) == DELTA
            gate.set()
            assert b"".join([part async for part in parts]) == COMPLETED


async def test_split_frames_are_passed_whole() -> None:
    """A frame that arrives in pieces is passed on once it is complete, whatever the pieces are."""

    async def dripping(exchange: Exchange) -> None:
        await exchange.start(200, [("content-type", "text/event-stream")])
        for byte in DELTA + COMPLETED:
            await exchange.send(bytes([byte]))
        await exchange.finish()

    async with scene(dripping) as here:
        async with here.stream() as answer:
            assert [part async for part in answer.aiter_raw()] == [DELTA, COMPLETED]


async def test_request_passes_and_secrets_do_not() -> None:
    """The body passes unchanged, with token and claim in the place of the key; the program never sees the token."""
    body = b'{ "model" : "model-1",\n "input": "\\u0000\xc3\xa9" }'
    headers = {
        "content-type": "application/json",
        "x-api-key": "not the key",
        "anthropic-version": "2023-06-01",
        "openai-organization": "org",
        "x-stainless-lang": "python",
        "cookie": "a=b",
        "x-agent-run": "another",
        "x-secret-hop": "1",
        "connection": "keep-alive, X-Secret-Hop",
        "te": "trailers",
    }
    async with scene(reply(200, b"{}", ("set-cookie", "c=d"), ("x-agent-epoch", "9"))) as here:
        answer = await here.client.post("/v1/messages?beta=true", content=body, headers=headers)
        [request], [sent] = here.provider.requests, here.provider.bodies
        key = here.door.key
        assert sent == body
        assert request.target == "/internal/agent/model/v1/messages?beta=true"
        assert [value for name, value in request.headers if name == "authorization"] == [f"Bearer {TOKEN}"]
        assert (request.header("x-agent-run"), request.header("x-agent-epoch")) == ("run-7", "3")
        assert request.header("user-agent") == "driver/test"
        assert request.header("accept-encoding") == "identity"
        assert request.header("anthropic-version") == "2023-06-01"
        assert request.header("openai-organization") == "org"
        assert request.header("x-stainless-lang") == "python"
        assert not {"cookie", "x-api-key", "x-secret-hop", "te", "connection"} & {name for name, _ in request.headers}
        assert key not in repr(request.headers)
        assert TOKEN not in repr(answer.headers) + answer.text
        assert not {"set-cookie", "x-agent-epoch"} & answer.headers.keys()
        await here.lines.wait_for("model.call.released")
        # Cookies of one answer are not sent with the next call.
        await here.post()
        assert here.provider.requests[1].header("cookie") is None
        assert key not in "".join(here.lines.text)
        assert TOKEN not in "".join(here.lines.text)


@pytest.mark.parametrize("chunked", [False, True])
async def test_large_request_passes(chunked: bool) -> None:
    """A request of some megabytes passes, sized or chunked, and its bytes are returned to the budget."""
    body = json.dumps({"input": ["x" * 1000] * 5000, "model": MODEL}).encode()

    async def parts() -> object:
        for start in range(0, len(body), 100_000):
            yield body[start : start + 100_000]

    async with scene(reply(200, b"{}")) as here:
        answer = await here.client.post("/v1/responses", content=parts() if chunked else body)  # type: ignore[arg-type]  # an async generator is content
        assert answer.status_code == 200
        assert here.provider.bodies == [body]
        assert here.provider.requests[0].header("content-length") == str(len(body))


async def test_gzip_request_is_checked_and_passed_as_it_is() -> None:
    """A compressed request passes compressed, once the model in it has been checked."""
    allowed, other = (gzip.compress(json.dumps({"model": model}).encode()) for model in (MODEL, "other"))
    async with scene(reply(200, b"{}")) as here:
        headers = {"content-encoding": "gzip"}
        assert (await here.client.post("/v1/responses", content=other, headers=headers)).status_code == 403
        assert (await here.client.post("/v1/responses", content=allowed, headers=headers)).status_code == 200
        assert here.provider.bodies == [allowed]
        assert here.provider.requests[0].header("content-encoding") == "gzip"


async def test_models_and_count_tokens_pass() -> None:
    """The list of models and the token count pass too, and spend nothing."""
    async with scene(reply(200, b'{"input_tokens":99}')) as here:
        assert (await here.client.get("/v1/models")).content == b'{"input_tokens":99}'
        head = await here.client.head("/v1/models")
        assert (head.status_code, head.content) == (200, b"")
        assert (await here.post("/v1/messages/count_tokens")).content == b'{"input_tokens":99}'
        targets = [(request.method, request.target) for request in here.provider.requests]
        prefix = "/internal/agent/model/v1"
        assert targets == [
            ("GET", f"{prefix}/models"),
            ("HEAD", f"{prefix}/models"),
            ("POST", f"{prefix}/messages/count_tokens"),
        ]
        assert here.door.statistics()["inputTokens"] == 0


async def test_observations_go_to_the_run() -> None:
    """Observations go to the run's own address, without a transport permit."""
    gate = anyio.Event()
    gate.set()
    full = Budgets(transports=TransportPermits(active=1, queue=0))
    async with scene(held_until(gate), budgets=full) as here:
        async with full.transports.hold(lambda _: None):
            answer = await here.client.post("/review/observations", json={"observations": []})
        assert answer.status_code == 200
        assert here.provider.requests[0].target == "/internal/agent/runs/run-7/runtime/observations"
        assert here.provider.requests[0].header("authorization") == f"Bearer {TOKEN}"


async def test_upstream_error_passes_unchanged() -> None:
    """A provider's refusal is the program's to read: status, body and Retry-After pass."""
    async with scene(reply(429, b'{"error":"slow"}', ("retry-after", "7"))) as here:
        answer = await here.post()
        assert (answer.status_code, answer.content, answer.headers["retry-after"]) == (429, b'{"error":"slow"}', "7")


async def test_connection_is_kept_between_calls() -> None:
    """Calls one after another share a connection to the door."""
    async with scene(reply(200, b"{}")) as here:
        for _ in range(3):
            await here.post()
            await anyio.wait_all_tasks_blocked()
        [connection] = here.client._transport._pool.connections  # type: ignore[attr-defined]  # the test client's pool
        assert "Request Count: 3" in connection.info()


async def test_slow_program_stops_the_provider() -> None:
    """What the program does not read the provider cannot send: memory stays bounded."""
    sent = 0
    frame = b"data: " + b"x" * 65_000 + b"\n\n"

    async def pouring(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.start(200, [("content-type", "text/event-stream")])
        for _ in range(900):
            await exchange.send(frame)
            sent += len(frame)
        await exchange.send(COMPLETED)
        await exchange.finish()

    async with scene(pouring) as here:
        async with here.stream() as answer:
            parts = answer.aiter_raw()
            await anext(parts)
            before = -1
            while sent != before:
                before = sent
                for _ in range(5):
                    await anyio.wait_all_tasks_blocked()
            assert sent < 20 << 20
            assert here.budgets.storage.statistics().reserved < 1 << 20
            received = 0
            async for part in parts:
                received += len(part)
        assert answer.is_closed
        assert sent == 900 * len(frame)


async def test_32_programs_that_do_not_read_stop_32_answers() -> None:
    """Each stopped answer takes a few pieces of memory, however much the provider would send."""
    frame = b"data: " + b"x" * 65_000 + b"\n\n"
    sent = 0

    async def pouring(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.start(200, [("content-type", "text/event-stream")])
        while True:
            await exchange.send(frame)
            sent += len(frame)

    async with scene(pouring) as here:
        address = ("127.0.0.1", urlsplit(here.door.url).port)
        body = json.dumps({"model": MODEL}).encode()
        head = f"POST /v1/responses HTTP/1.1\r\nHost: d\r\nX-Api-Key: {here.door.key}\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        with ExitStack() as programs:
            tracemalloc.start()
            programs.callback(tracemalloc.stop)
            for _ in range(32):
                program = programs.enter_context(socket.create_connection(address))
                program.sendall(request)
            await here.lines.wait_for("model.call.accepted", 32)
            before = -1
            while sent != before or not sent:
                before = sent
                for _ in range(5):
                    await anyio.wait_all_tasks_blocked()
            assert here.budgets.transports.statistics().active == 32
            assert here.budgets.storage.statistics().reserved <= 32 * (PASSING_BYTES + len(frame))
            # The provider and its frames are in here too.
            assert tracemalloc.get_traced_memory()[1] < 32 << 20
        await here.lines.wait_for("model.call.released", 32)


async def test_parallel_calls_up_to_the_limit() -> None:
    """As many calls as there are permits are with the provider at once, and never more."""
    gate = anyio.Event()
    budgets = Budgets(transports=TransportPermits(active=3, queue=10))
    async with scene(held_until(gate), budgets=budgets) as here, anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(here.post)
        await here.lines.wait_for("model.call.waiting", 2)
        assert (budgets.transports.statistics().active, budgets.transports.statistics().waiting) == (3, 2)
        with anyio.fail_after(10):
            while here.provider.open < 3:
                await checkpoint()
        gate.set()
        await here.lines.wait_for("model.call.released", 5)
        assert here.provider.most_open == 3
        assert here.door.statistics()["waited"] == 2


async def test_calls_are_served_in_the_order_they_came() -> None:
    """The queue is first in, first out, also across the doors' programs."""
    gate = anyio.Event()
    budgets = Budgets(transports=TransportPermits(active=1, queue=10))
    async with scene(held_until(gate), budgets=budgets) as here, anyio.create_task_group() as tasks:

        async def call(number: int) -> None:
            await here.post(input=number)

        tasks.start_soon(call, 0)
        await here.provider.arrived.wait()
        for number in range(1, 6):
            tasks.start_soon(call, number)
            await here.lines.wait_for("model.call.waiting", number)
        gate.set()
        await here.lines.wait_for("model.call.released", 6)
        assert [json.loads(body)["input"] for body in here.provider.bodies] == list(range(6))


async def test_parsing_permit_is_free_while_the_provider_thinks() -> None:
    """A call that waits for its provider holds a transport permit and no parsing permit."""
    gate = anyio.Event()
    budgets = Budgets(parsing=ParsingPermit())
    async with scene(held_until(gate), budgets=budgets) as here, anyio.create_task_group() as tasks:
        tasks.start_soon(here.post)
        await here.provider.arrived.wait()
        assert budgets.transports.statistics().active == 1
        assert budgets.parsing.statistics().active == 0
        gate.set()


async def test_closing_the_door_settles_every_call() -> None:
    """When the run ends, calls in flight and in the queue are cancelled, and everything is given back."""
    budgets = Budgets(transports=TransportPermits(active=1, queue=10))
    async with anyio.create_task_group() as tasks:

        async def call(post: Callable[[], object]) -> None:
            with pytest.raises(httpx.HTTPError):
                await post()  # type: ignore[misc]  # a coroutine function

        async with scene(held_until(anyio.Event()), budgets=budgets) as here:
            client = httpx.AsyncClient(base_url=here.door.url, headers=here.client.headers, trust_env=False)
            tasks.start_soon(call, lambda: client.post("/v1/responses", json={"model": MODEL}))
            await here.provider.arrived.wait()
            tasks.start_soon(call, lambda: client.post("/v1/responses", json={"model": MODEL}))
            await here.lines.wait_for("model.call.waiting")
        assert here.idle()
        assert here.door.statistics()["abandoned"] == 2
    await client.aclose()


async def test_errors_of_the_caller_come_out_as_they_are() -> None:
    """What is raised inside the door's block leaves it unwrapped."""
    lines = Lines()
    upstream = Upstream("http://127.0.0.1:9", TOKEN, verify=False, run_id="r", epoch=1, user_agent="d")

    async def raising() -> None:
        async with open_door(
            upstream,
            model=MODEL,
            budgets=Budgets(),
            log=lines.log,
            clock=BootClock(),
            on_claim_refused=lambda status: None,
        ) as door:
            assert lines.log.secrets.mask(f"key {door.key}") == "key ***"
            assert door.key not in repr(door)
            raise KeyError

    with pytest.raises(KeyError):
        await raising()
