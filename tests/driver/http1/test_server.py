"""The HTTP server over real sockets, with clients that send exact bytes."""

from collections.abc import Awaitable, Callable

import anyio
import httpx
import pytest
from anyio.abc import SocketAttribute

from driver.http1 import ClientGone, Exchange, serve
from tests.driver.http1.support import connected, echo, receive_all, receive_until, running

pytestmark = pytest.mark.anyio


async def test_connection_serves_one_request_after_another() -> None:
    """A client that keeps its connection gets each answer on it, in order, also when it sends ahead."""
    async with connected(echo) as stream:
        await stream.send(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\noneGET / HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        assert b"\r\n\r\none" in await receive_until(stream, b"x-method: GET\r\ncontent-length: 0\r\n\r\n")
        await stream.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nthree")
        assert await receive_until(stream, b"three")


async def test_get_without_reading_keeps_the_connection() -> None:
    """A request without a body needs no reading for the connection to be kept."""

    async def handler(exchange: Exchange) -> None:
        await exchange.respond(200)

    async with connected(handler) as stream:
        for _ in range(2):
            await stream.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"close" not in await receive_until(stream, b"\r\n\r\n")


async def test_connection_close_is_honoured() -> None:
    """A client that asks for it finds the connection closed after the answer."""
    async with connected(echo) as stream:
        await stream.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await receive_all(stream)).startswith(b"HTTP/1.1 200")


async def test_continue_is_sent_only_when_the_body_is_read() -> None:
    """A client that waits for 100 Continue gets it before its body is read."""
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    async with connected(echo) as stream:
        await stream.send(head)
        assert await receive_until(stream, b"\r\n\r\n") == b"HTTP/1.1 100 \r\n\r\n"
        await stream.send(b"abc")
        assert await receive_until(stream, b"abc")


async def test_refused_body_is_not_asked_for() -> None:
    """An answer that was given without reading the body comes instead of 100 Continue, and closes."""

    async def refuse(exchange: Exchange) -> None:
        await exchange.respond(413)

    async with connected(refuse) as stream:
        await stream.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        answer = await receive_all(stream)
        assert answer == b"HTTP/1.1 413 \r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


async def test_early_refusal_reaches_a_client_that_still_sends() -> None:
    """Closing with unread bytes does not reset the answer away."""

    async def refuse(exchange: Exchange) -> None:
        await exchange.respond(413, body=b"too large")

    async with running(refuse) as port, httpx.AsyncClient(trust_env=False) as client:
        for _ in range(5):
            answer = await client.post(f"http://127.0.0.1:{port}/", content=b"x" * (8 << 20))
            assert (answer.status_code, answer.content) == (413, b"too large")


async def test_chunked_body_arrives_in_parts() -> None:
    """A chunked body is read as it comes, and its end is told by an empty part."""
    parts: list[bytes] = []
    came = [anyio.Event(), anyio.Event()]

    async def handler(exchange: Exchange) -> None:
        while part := await exchange.receive():
            parts.append(part)
            came[len(parts) - 1].set()
        await exchange.respond(200)

    async with connected(handler) as stream:
        await stream.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await came[0].wait()
        await stream.send(b"3\r\ntwo\r\n0\r\n\r\n")
        await receive_until(stream, b"\r\n\r\n")
    assert parts == [b"one", b"two"]


@pytest.mark.parametrize(("size", "read"), [(99, True), (100, True), (101, False)])
async def test_read_is_bounded(size: int, read: bool) -> None:
    """A body of the limit is read, one byte more is not."""
    got: list[bytes | None] = []

    async def handler(exchange: Exchange) -> None:
        got.append(await exchange.read(100))
        await exchange.respond(200)

    async with running(handler) as port, httpx.AsyncClient(trust_env=False) as client:
        await client.post(f"http://127.0.0.1:{port}/", content=b"x" * size)
    assert got == [b"x" * size if read else None]


async def test_head_answers_without_a_body() -> None:
    """HEAD gets the headers that GET gets, no body, and the connection lives on."""

    async def handler(exchange: Exchange) -> None:
        await exchange.respond(200, body=b"hello")

    async with connected(handler) as stream:
        for _ in range(2):
            await stream.send(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await receive_until(stream, b"\r\n\r\n") == b"HTTP/1.1 200 \r\ncontent-length: 5\r\n\r\n"


async def test_streamed_answer_is_chunked_and_arrives_as_sent() -> None:
    """Each part is with the client before the next one is sent."""
    go_on = anyio.Event()

    async def handler(exchange: Exchange) -> None:
        await exchange.start(200)
        await exchange.send(b"one")
        await go_on.wait()
        await exchange.send(b"")
        await exchange.send(b"two")
        await exchange.finish()

    async with running(handler) as port, httpx.AsyncClient(trust_env=False) as client:
        async with client.stream("GET", f"http://127.0.0.1:{port}/") as answer:
            parts = answer.aiter_raw()
            assert await anext(parts) == b"one"
            go_on.set()
            assert [part async for part in parts] == [b"two"]


@pytest.mark.parametrize("body_read", [True, False])
async def test_client_that_leaves_is_seen(body_read: bool) -> None:
    """A client that closes its connection is noticed, whether or not its body was read."""
    waiting, gone = anyio.Event(), anyio.Event()

    async def handler(exchange: Exchange) -> None:
        if body_read:
            await exchange.read(100)
        waiting.set()
        await exchange.wait_gone()
        gone.set()
        raise ClientGone

    async with running(handler) as port:
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
            await waiting.wait()
            await anyio.wait_all_tasks_blocked()
            assert not gone.is_set()
        with anyio.fail_after(5):
            await gone.wait()


async def test_client_that_only_sends_ahead_is_not_gone() -> None:
    """A second request on the same connection is no departure."""
    gone = anyio.Event()
    seconds: list[str] = []

    async def handler(exchange: Exchange) -> None:
        seconds.append(exchange.request.path)
        with anyio.move_on_after(0.05 if exchange.request.path == "/1" else 0):
            await exchange.wait_gone()
            gone.set()
        await exchange.respond(200)

    async with connected(handler) as stream:
        await stream.send(b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\n")
        await receive_until(stream, b"\r\n\r\n")
    assert not gone.is_set()


async def test_sending_to_a_departed_client_says_so() -> None:
    """Once the client has closed, sending raises ClientGone instead of filling memory."""
    result: list[type[BaseException]] = []
    done = anyio.Event()

    async def handler(exchange: Exchange) -> None:
        await exchange.start(200)
        try:
            while True:
                await exchange.send(b"x" * 65536)
        except ClientGone as error:
            result.append(type(error))
            raise
        finally:
            done.set()

    async with running(handler) as port:
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await stream.receive()
        with anyio.fail_after(5):
            await done.wait()
    assert result == [ClientGone]


async def abort_chunked(exchange: Exchange) -> None:
    await exchange.start(200)
    await exchange.send(b"part")
    await exchange.abort()


async def abort_sized(exchange: Exchange) -> None:
    await exchange.start(200, [("content-length", "10")])
    await exchange.send(b"part")
    await exchange.abort()


async def abort_before_head(exchange: Exchange) -> None:
    await exchange.abort()


async def leave_unfinished(exchange: Exchange) -> None:
    await exchange.start(200)
    await exchange.send(b"part")


@pytest.mark.parametrize("handler", [abort_chunked, abort_sized, abort_before_head, leave_unfinished])
async def test_broken_answer_looks_broken(handler: Callable[[Exchange], Awaitable[None]]) -> None:
    """No client can take an answer that was broken off, or never finished, for a whole one."""
    async with running(handler) as port, httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize("handler", [abort_chunked, leave_unfinished])
async def test_broken_answer_looks_broken_to_an_old_client(handler: Callable[[Exchange], Awaitable[None]]) -> None:
    """Where the end of the connection would end the body (HTTP/1.0), it is reset instead."""
    async with connected(handler) as stream:
        await stream.send(b"GET / HTTP/1.0\r\n\r\n")
        with pytest.raises(anyio.BrokenResourceError):
            await receive_all(stream)


async def test_reset_is_a_reset() -> None:
    """An abort with reset is seen as a reset, not as an end."""

    async def handler(exchange: Exchange) -> None:
        await exchange.abort(reset=True)

    async with connected(handler) as stream:
        await stream.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        with pytest.raises(anyio.BrokenResourceError):
            await stream.receive()


async def test_abort_ends_the_wait_for_the_client() -> None:
    """A task that waits for the client to go is let go when the answer is broken off."""
    returned = anyio.Event()

    async def handler(exchange: Exchange) -> None:
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                await exchange.wait_gone()
                returned.set()

            tasks.start_soon(watch)
            await anyio.wait_all_tasks_blocked()
            await exchange.abort()

    async with connected(handler) as stream:
        await stream.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        with anyio.fail_after(5):
            await returned.wait()


@pytest.mark.parametrize(
    "head",
    [
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: one\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ],
)
async def test_bad_request_is_answered(head: bytes) -> None:
    """A request that breaks the rules gets 400 and never reaches the handler; the server lives on."""

    async def handler(exchange: Exchange) -> None:
        raise AssertionError("must not be called")

    async with connected(handler) as stream:
        await stream.send(head)
        assert (await receive_all(stream)).startswith(b"HTTP/1.1 400")


async def test_oversized_head_is_answered() -> None:
    """A head of more than 64 KiB gets 431."""
    async with connected(echo) as stream:
        await stream.send(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 70_000)
        assert (await receive_all(stream)).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("sent", [b"1\r\na\r\n", b"not a chunk\r\n"])
async def test_broken_request_body_is_told(sent: bytes) -> None:
    """A body that breaks off, or breaks the rules, raises ClientGone at the reader."""
    seen = anyio.Event()

    async def handler(exchange: Exchange) -> None:
        with pytest.raises(ClientGone):
            await exchange.read(100)
        seen.set()
        raise ClientGone

    async with connected(handler) as stream:
        await stream.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + sent)
        await stream.send_eof()
        with anyio.fail_after(5):
            await seen.wait()


async def test_header_values_pass_byte_for_byte() -> None:
    """Header values that are not ASCII come in and go out unchanged."""

    async def handler(exchange: Exchange) -> None:
        await exchange.respond(200, [("x-echo", exchange.request.header("x-given") or "")])

    async with connected(handler) as stream:
        await stream.send(b"GET / HTTP/1.1\r\nHost: x\r\nX-Given: caf\xe9\r\n\r\n")
        assert b"x-echo: caf\xe9\r\n" in await receive_until(stream, b"\r\n\r\n")


async def test_connections_past_the_limit_wait() -> None:
    """One connection more than the limit is served when another one ends."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: serve(listener, echo, max_connections=1))
        port = listener.extra(SocketAttribute.local_port)
        first = await anyio.connect_tcp("127.0.0.1", port)
        await first.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await receive_until(first, b"\r\n\r\n")
        async with await anyio.connect_tcp("127.0.0.1", port) as second:
            await second.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await anyio.wait_all_tasks_blocked()
            await first.aclose()
            assert await receive_until(second, b"\r\n\r\n")
        tasks.cancel_scope.cancel()
