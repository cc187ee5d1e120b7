"""The rules of HTTP/1.1 (RFC 9112) at the server: what is read, what is refused, what a connection lives through."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import anyio
import pytest

from driver.http1 import BodyStalled, ClientGone, Exchange, Patience
from tests.driver.http1.support import connected, echo, receive_all, receive_until, running

pytestmark = pytest.mark.anyio

HOST = b"Host: x\r\n"


async def unreachable(exchange: Exchange) -> None:
    raise AssertionError("must not be called")


async def test_requests_that_were_sent_ahead_are_answered_in_order() -> None:
    """Whatever a client sends ahead, each request gets its own answer, in order."""
    async with connected(echo) as stream:
        sent = b"".join(
            b"POST /%d HTTP/1.1\r\n" % number + HOST + b"Content-Length: 4\r\n\r\n%04d" % number for number in range(50)
        )
        await stream.send(sent)
        answers = await receive_until(stream, b"0049")
        assert answers.split(b"\r\n\r\n")[1:-1] == [
            b"%04dHTTP/1.1 200 \r\nx-method: POST\r\ncontent-length: 4" % n for n in range(49)
        ]


async def test_folded_header_is_one_value() -> None:
    """An old-style header over two lines is read as one value."""
    seen: list[str | None] = []

    async def handler(exchange: Exchange) -> None:
        seen.append(exchange.request.header("x-folded"))
        await exchange.respond(200)

    async with connected(handler) as stream:
        await stream.send(b"GET / HTTP/1.1\r\n" + HOST + b"X-Folded: one\r\n  two\r\n\r\n")
        await receive_until(stream, b"\r\n\r\n")
    assert seen == ["one two"]


@pytest.mark.parametrize(
    ("framing", "status"),
    [
        (b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", b"400"),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", b"400"),
        (b"Content-Length: 3\r\nContent-Length: 4\r\n", b"400"),
        (b"Content-Length: 3, 4\r\n", b"400"),
        (b"Content-Length: -3\r\n", b"400"),
        (b"Content-Length: 0x3\r\n", b"400"),
        (b"Content-Length : 3\r\n", b"400"),
        (b"Transfer-Encoding: gzip, chunked\r\n", b"501"),
        (b"Transfer-Encoding: chunked, chunked\r\n", b"501"),
        (b"Host: y\r\n", b"400"),
    ],
)
async def test_body_that_could_be_read_in_two_ways_is_refused(framing: bytes, status: bytes) -> None:
    """Where it is not certain where a request ends, it is refused and the connection closed."""
    async with connected(unreachable) as stream:
        await stream.send(b"POST / HTTP/1.1\r\n" + HOST + framing + b"\r\n3\r\nabc\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n")
        answer = await receive_all(stream)
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert b"connection: close" in answer.lower()
        assert answer.count(b"HTTP/1.1") == 1


async def test_equal_lengths_are_one() -> None:
    """A content-length that is told twice, the same both times, is one."""
    async with connected(echo) as stream:
        await stream.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc")
        assert (await receive_until(stream, b"abc")).startswith(b"HTTP/1.1 200")


async def test_extensions_and_trailers_are_passed_over() -> None:
    """Chunk extensions and trailers are no part of the body, and the next request is found behind them."""
    async with connected(echo) as stream:
        await stream.send(
            b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: Chunked\r\n\r\n"
            b'3;a=b;c="d"\r\none\r\n0;last\r\nX-Trailer: 1\r\nContent-Length: 9\r\n\r\n'
        )
        assert b"\r\n\r\none" in await receive_until(stream, b"one")
        await stream.send(b"GET /next HTTP/1.1\r\n" + HOST + b"\r\n")
        await receive_until(stream, b"x-method: GET\r\ncontent-length: 0\r\n\r\n")


async def test_upgrade_is_not_taken() -> None:
    """A request that offers another protocol is served in this one, and the connection lives on."""
    async with connected(echo) as stream:
        for _ in range(2):
            await stream.send(b"GET / HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
            assert (await receive_until(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("target", "path"),
    [(b"http://x:1/a/b?c=d", "/a/b"), (b"/a%2Fb?c=d", "/a/b"), (b"*", "*"), (b"/caf%C3%A9?c=d", "/caf\xe9")],
)
async def test_targets(target: bytes, path: str) -> None:
    """The path is found in each form of a target, decoded and without the query."""
    seen: list[str] = []

    async def handler(exchange: Exchange) -> None:
        seen.append(exchange.request.path)
        await exchange.respond(200)

    async with connected(handler) as stream:
        await stream.send(b"OPTIONS " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n")
        await receive_until(stream, b"\r\n\r\n")
    assert seen == [path]


@pytest.mark.parametrize(("extra", "status"), [(-1, b"200"), (0, b"200"), (1, b"431")])
@pytest.mark.parametrize("step", [1 << 20, 32_768])
async def test_head_is_bounded(extra: int, status: bytes, step: int) -> None:
    """Target and header lines may take 64 KiB together, and not one byte more, in one piece or in many."""
    fixed = len(b"/" + b"Host: x\r\n" + b"x-long: \r\n")
    head = b"GET / HTTP/1.1\r\nHost: x\r\nx-long: " + b"x" * (64 * 1024 - fixed + extra) + b"\r\n\r\n"
    async with connected(echo) as stream:
        for start in range(0, len(head), step):
            await stream.send(head[start : start + step])
            await anyio.wait_all_tasks_blocked()
        assert (await stream.receive())[9:12] == status


async def test_slow_head_is_cut() -> None:
    """A client that never completes its head, or says nothing at all, is closed after the time for it."""
    for sent in (b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "):
        async with connected(unreachable, patience=Patience(head=0.05)) as stream:
            if sent:
                await stream.send(sent)
            with anyio.fail_after(5):
                assert await receive_all(stream) == b""


async def test_stalled_body_is_told() -> None:
    """A body that stops coming raises BodyStalled at the reader, who can still answer."""

    async def handler(exchange: Exchange) -> None:
        assert await exchange.receive() == b"ab"
        with pytest.raises(BodyStalled):
            await exchange.receive()
        await exchange.respond(408)

    async with connected(handler, patience=Patience(body=0.05)) as stream:
        await stream.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nab")
        with anyio.fail_after(5):
            answer = await receive_until(stream, b"\r\n\r\n")
        assert answer == b"HTTP/1.1 408 \r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        await stream.send_eof()


async def test_unread_body_is_not_taken_in() -> None:
    """What the handler has not asked for stays with the client, beyond what the kernel holds for both."""
    began = anyio.Event()

    async def handler(exchange: Exchange) -> None:
        began.set()
        await exchange.wait_gone()
        raise ClientGone

    async with connected(handler) as stream:
        sent = 0
        await stream.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1000000000\r\n\r\nfirst")
        await began.wait()
        with anyio.move_on_after(0.5):
            while sent < 64 << 20:
                await stream.send(bytes(1 << 16))
                sent += 1 << 16
        assert sent < 24 << 20


async def test_half_closed_client_counts_as_gone() -> None:
    """A client that closes its sending side is taken to have gone: nobody would tell the two apart in time."""
    gone = anyio.Event()

    async def handler(exchange: Exchange) -> None:
        await exchange.wait_gone()
        gone.set()
        raise ClientGone

    async with connected(handler) as stream:
        await stream.send(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        await stream.send_eof()
        with anyio.fail_after(5):
            await gone.wait()


async def test_reset_in_the_middle_of_an_answer_is_a_departure() -> None:
    """A client that resets its connection ends its exchange, not the server."""
    departures: list[type[BaseException]] = []

    async def handler(exchange: Exchange) -> None:
        try:
            while True:
                if not exchange.started:
                    await exchange.start(200)
                await exchange.send(bytes(1 << 16))
        except ClientGone as error:
            departures.append(type(error))
            raise

    async with running(handler) as port:
        for _ in range(3):
            raw = socket.create_connection(("127.0.0.1", port))
            raw.sendall(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            raw.close()
        with anyio.fail_after(5):
            while len(departures) < 3:  # noqa: ASYNC110 # the handlers tell nobody else
                await anyio.sleep(0.01)
    assert departures == [ClientGone] * 3


async def test_crowd_costs_no_descriptors_beyond_the_limit() -> None:
    """Connections past the limit stand in the kernel's queue, cost the server no descriptor, and get their turn."""
    async with running(echo, max_connections=10) as port:
        before = len(os.listdir("/proc/self/fd"))
        with ExitStack() as stack:
            crowd = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(200)]
            for raw in crowd:
                raw.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n")
            most = 0
            for raw in crowd:
                raw.setblocking(False)
                with anyio.fail_after(5):
                    await anyio.wait_readable(raw)
                most = max(most, len(os.listdir("/proc/self/fd")))
                assert raw.recv(100).startswith(b"HTTP/1.1 200")
            assert most <= before + 200 + 10


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open("/dev/null") as probe:  # the lowest number that is free
        lowest = probe.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_server_outlives_a_want_of_descriptors() -> None:
    """When no descriptor is left a client waits, and is served as soon as there is one again."""
    async with running(echo) as port:
        await anyio.wait_all_tasks_blocked()
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
            raw.setblocking(False)
            with no_descriptors_left():
                await anyio.wait_all_tasks_blocked()
                with pytest.raises(BlockingIOError):
                    raw.recv(100)
            with anyio.fail_after(5):
                await anyio.wait_readable(raw)
            assert raw.recv(100).startswith(b"HTTP/1.1 200")
