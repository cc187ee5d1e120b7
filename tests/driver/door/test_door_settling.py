"""However an exchange ends, its permit and its bytes come back once, and the call that waited longest goes on."""

import json
from collections.abc import Awaitable, Callable

import anyio
import httpx
import pytest

from driver.door.permits import Budgets, Storage, TransportPermits
from driver.door.upstream import UpstreamTimeouts
from driver.errors import ClaimInDoubt
from driver.http1 import Exchange, Patience
from tests.driver.door.support import (
    COMPLETED,
    DELTA,
    MODEL,
    Answering,
    Scene,
    held_until,
    raw,
    reply,
    scene,
    sse,
)

pytestmark = pytest.mark.anyio

STREAM = [("content-type", "text/event-stream")]
Ending = Callable[[Exchange], Awaitable[None]]


async def reset_at_once(exchange: Exchange) -> None:
    await exchange.abort(reset=True)


async def cut_in_stream(exchange: Exchange) -> None:
    await exchange.start(200, STREAM)
    await exchange.send(DELTA)
    await exchange.abort()


async def reset_in_stream(exchange: Exchange) -> None:
    await exchange.start(200, STREAM)
    await exchange.send(DELTA)
    await exchange.abort(reset=True)


async def silent(exchange: Exchange) -> None:
    await exchange.wait_gone()
    await exchange.abort()


async def silent_in_stream(exchange: Exchange) -> None:
    await exchange.start(200, STREAM)
    await exchange.send(DELTA)
    await silent(exchange)


PROVIDER_ENDINGS: dict[str, tuple[Ending, str]] = {
    "whole": (reply(200, b"{}"), "answered"),
    "streamed": (sse(DELTA, COMPLETED), "answered"),
    "refused": (reply(400, b"{}"), "answered"),
    "reset": (reset_at_once, "refused"),
    "silent": (silent, "refused"),
    "cut in mid-stream": (cut_in_stream, "broken_off"),
    "reset in mid-stream": (reset_in_stream, ""),
    "silent in mid-stream": (silent_in_stream, "broken_off"),
    "no last event": (sse(DELTA), "broken_off"),
    "malformed event": (sse(DELTA, b'event: response.completed\ndata: {"response":\n\n'), ""),
    "oversized event": (sse(DELTA, b"data: " + b"x" * (4 << 20) + b"\n\n"), ""),
    "claim refused": (reply(409, b"{}"), "refused"),
    "switches protocols": (raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"), "refused"),
}


def first_then_well(ending: Ending) -> Answering:
    """The first call ends like that, later ones are answered."""
    calls = 0

    async def answer(exchange: Exchange) -> None:
        nonlocal calls
        calls += 1
        await (ending if calls == 1 else reply(200, b"{}"))(exchange)

    return answer


@pytest.mark.parametrize("name", PROVIDER_ENDINGS)
async def test_next_call_goes_on(name: str) -> None:
    """After each ending that the provider can give a call, the two that waited are served in their order."""
    ending, end = PROVIDER_ENDINGS[name]
    budgets = Budgets(transports=TransportPermits(active=1, queue=2))
    go = anyio.Event()

    async def held(exchange: Exchange) -> None:
        await go.wait()
        await ending(exchange)

    timeouts = UpstreamTimeouts(first_byte=0.1, gap=0.1)
    async with scene(first_then_well(held), budgets=budgets, timeouts=timeouts) as here:
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(call_quietly, here, number)
                await (here.lines.wait_for("model.call.waiting", number) if number else here.provider.arrived.wait())
            go.set()
        released = await here.lines.wait_for("model.call.released", 3)
        assert len(released) == len(here.lines.named("model.call.accepted")) == 3
        assert end in ("", released[0]["end"])
        expected = [0] if name == "claim refused" else [0, 1, 2]
        assert [json.loads(body)["input"] for body in here.provider.bodies] == expected


async def call_quietly(here: Scene, number: int) -> None:
    try:
        async with here.stream(input=number) as answer:
            await answer.aread()
    except httpx.HTTPError:
        return


@pytest.mark.parametrize("sent", ["head", "half", "all"])
async def test_program_that_leaves_early_lets_the_next_one_in(sent: str) -> None:
    """A program may go before its request was read, in the middle of it, or while the provider thinks."""
    budgets = Budgets(transports=TransportPermits(active=1, queue=1))
    body = b'{"model":"model-1"}'
    gate = anyio.Event()
    async with scene(first_then_well(held_until(gate)), budgets=budgets) as here:
        host, port = here.door.url.removeprefix("http://").split(":")
        async with anyio.create_task_group() as tasks:
            async with await anyio.connect_tcp(host, int(port)) as stream:
                head = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nx-api-key: " + here.door.key.encode()
                part = {"head": b"", "half": body[:9], "all": body}[sent]
                await stream.send(head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + part)
                await here.lines.wait_for("model.call.accepted")
                if sent == "all":
                    await here.provider.arrived.wait()
                if sent == "all":
                    tasks.start_soon(here.post)
                    await here.lines.wait_for("model.call.waiting")
            if sent != "all":
                gate.set()
                tasks.start_soon(here.post)
        released = await here.lines.wait_for("model.call.released", 2)
        assert [line["end"] for line in released] == ["abandoned", "answered"]


async def test_claim_in_doubt_sends_nothing() -> None:
    """Once the lease may be over no call leaves the sandbox, and the program reads 409 from then on."""
    in_doubt = True

    def guard() -> None:
        if in_doubt:
            raise ClaimInDoubt

    async with scene(reply(200, b"{}"), guard=guard) as here:
        answer = await here.post()
        assert (answer.status_code, answer.json()["code"]) == (409, "claim_lost")
        assert answer.headers["x-should-retry"] == "false"
        in_doubt = False
        assert (await here.post()).status_code == 409
        assert (await here.client.post("/review/observations", json={})).status_code == 409
        assert here.provider.requests == []
        assert here.claims_refused == []  # the lease's keeper knows already


async def test_claim_that_is_lost_stops_those_who_wait() -> None:
    """A call that waited while the claim was lost reaches no gateway."""
    budgets = Budgets(transports=TransportPermits(active=1, queue=2))
    go = anyio.Event()

    async def refusing(exchange: Exchange) -> None:
        await go.wait()
        await reply(409, b"{}")(exchange)

    codes: list[int] = []
    async with scene(refusing, budgets=budgets) as here, anyio.create_task_group() as tasks:

        async def call() -> None:
            codes.append((await here.post()).status_code)

        for number in range(3):
            tasks.start_soon(call)
            await (here.lines.wait_for("model.call.waiting", number) if number else here.provider.arrived.wait())
        go.set()
        await here.lines.wait_for("model.call.released", 3)
        assert len(here.provider.requests) == 1
    assert codes == [409, 409, 409]


async def test_slow_program_is_no_silent_gateway() -> None:
    """A program that takes longer to read than a gateway may be silent still gets its whole answer."""
    frame = b"data: " + b"x" * 100_000 + b"\n\n"
    async with scene(sse(*[frame] * 200, COMPLETED), timeouts=UpstreamTimeouts(first_byte=5, gap=0.2)) as here:
        async with here.stream() as answer:
            parts = answer.aiter_raw()
            received = len(await anext(parts))
            await anyio.sleep(0.6)  # the time itself is what is tested
            async for part in parts:
                received += len(part)
        assert received == 200 * len(frame) + len(COMPLETED)


async def test_answer_with_two_lengths_passes() -> None:
    """A content-length that means nothing, beside chunks, is not passed on."""

    both = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    async with scene(raw(both)) as here:
        answer = await here.post()
        assert (answer.status_code, answer.content) == (200, b"{}")
        assert "content-length" not in answer.headers


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/v1/messages"])
async def test_program_that_has_its_last_event_was_answered(path: str) -> None:
    """A program need not wait for the end of the stream behind its last event, as real clients do not."""
    last = {
        "/v1/responses": COMPLETED,
        "/v1/chat/completions": b"data: [DONE]\n\n",
        "/v1/messages": b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    }[path]

    async def lingering(exchange: Exchange) -> None:
        await exchange.start(200, STREAM)
        await exchange.send(last)
        await silent(exchange)

    async with scene(lingering) as here:
        async with here.stream(path) as answer:
            assert await anext(answer.aiter_raw()) == last
        [released] = await here.lines.wait_for("model.call.released")
        assert released["end"] == "answered"
        told = here.door.statistics()
        assert (told["answered"], told["abandoned"]) == (1, 0)


async def test_fault_ends_one_call_only() -> None:
    """What the door did not foresee is told in the log and to the program, and the door serves on."""

    def failing(status: int) -> None:
        raise LookupError(f"status {status}")

    async with scene(first_then_well(reply(401, b"{}")), on_claim_refused=failing) as here:
        answer = await here.post()
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        [failed] = here.lines.named("model.call.failed")
        assert failed["error"] == "LookupError('status 401')"
        assert (await here.client.get("/v1/models")).status_code == 409


async def test_parsing_permit_is_taken_for_each_frame() -> None:
    """A complete frame waits for the one parsing permit; the transport permit is held meanwhile."""
    budgets = Budgets()
    gate = anyio.Event()
    async with scene(sse(DELTA, COMPLETED, gate=gate), budgets=budgets) as here:
        async with here.stream() as answer:
            parts = answer.aiter_raw()
            assert await anext(parts) == DELTA
            async with budgets.parsing.hold():
                gate.set()
                while not budgets.parsing.statistics().waiting:
                    await anyio.wait_all_tasks_blocked()
                assert budgets.transports.statistics().active == 1
            assert await anext(parts) == COMPLETED


async def test_request_is_not_kept_while_the_answer_comes() -> None:
    """Once the provider answers, the bytes of the request are given back."""
    gate = anyio.Event()
    async with scene(sse(DELTA, COMPLETED, gate=gate)) as here:
        async with here.stream(input="x" * 5_000_000) as answer:
            await anext(answer.aiter_raw())
            assert here.budgets.storage.statistics().reserved < 1_000_000
            gate.set()


async def test_room_for_the_answer_is_taken_before_the_provider_is_asked() -> None:
    """Where a request fits the storage and its answer would not, no provider is reached: it would cost a turn."""
    async with scene(reply(200, b"{}"), budgets=Budgets(storage=Storage(100_000))) as here:
        answer = await here.post()
        assert (answer.status_code, answer.json()["code"]) == (429, "local_capacity")
        assert here.provider.requests == []


async def test_six_calls_of_one_task_take_one_permit_at_a_time() -> None:
    """A task that asks, acts and asks again uses six permits one after the other, never two at once."""
    budgets = Budgets(transports=TransportPermits(active=1, queue=0))
    async with scene(sse(DELTA, COMPLETED), budgets=budgets, patience=Patience()) as here:
        for number in range(6):
            answer = await here.post(stream=True, input=number)
            assert answer.content == DELTA + COMPLETED
            await here.lines.wait_for("model.call.released", number + 1)
        assert here.provider.most_open == 1
        assert not here.lines.named("model.call.waiting")
        assert here.door.statistics()["answered"] == 6
        assert json.loads(here.provider.bodies[0])["model"] == MODEL
