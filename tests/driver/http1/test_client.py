"""The client over real sockets, against servers that answer with exact bytes."""

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
import trustme
from anyio import from_thread, to_thread
from anyio.abc import ByteStream, SocketAttribute, SocketStream
from anyio.streams.tls import TLSListener

from driver.http1.client import Call, CallTimeouts, Client, Response, ServerUnreachable
from driver.http1.server_connection import ServerBroke

pytestmark = pytest.mark.anyio

TIMEOUTS = CallTimeouts(connect=5, send=5, head=5)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Serving = Callable[[SocketStream], Awaitable[None]]


async def request_on(stream: ByteStream) -> bytes:
    """One request without a body, or with one of known length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive()
    head, _, body = data.partition(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    while len(body) < size:
        body += await stream.receive()
    return head + b"\r\n\r\n" + body


class Server:
    """Answers each request with the next of `answers`; counts its connections."""

    def __init__(self, *answers: bytes, closes: bool = False) -> None:
        self.answers = list(answers)
        self.closes = closes
        self.connections = 0
        self.requests: list[bytes] = []

    async def serve(self, stream: ByteStream) -> None:
        self.connections += 1
        async with stream:
            try:
                while self.answers:
                    self.requests.append(await request_on(stream))
                    await stream.send(self.answers.pop(0))
                    if self.closes:
                        return
                await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return


@asynccontextmanager
async def client_of(serving: Serving, path: str = "") -> AsyncIterator[Client]:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serving)
            client = Client(f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}{path}")
            yield client
            await client.aclose()
            tasks.cancel_scope.cancel()


async def whole(response: Response) -> bytes:
    body = b""
    while data := await response.receive():
        body += data
    return body


async def get(client: Client, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
    async with client.call(Call(method, "/t", [("x-a", "b")], body), TIMEOUTS, before=lambda: None) as response:
        return response.status, await whole(response)


async def test_call_is_sent_as_given() -> None:
    """Target, headers and body go out as they are, with the host and the length put in."""
    server = Server(OK)
    async with client_of(server.serve, "/base/") as client:
        assert await get(client, "POST", b"body") == (200, b"ok")
    [sent] = server.requests
    assert sent.startswith(b"POST /base/t HTTP/1.1\r\n")
    assert sent.lower().count(b"\r\nhost: 127.0.0.1:") == 1
    assert b"\r\nx-a: b\r\n" in sent.lower()
    assert sent.endswith(b"\r\n\r\nbody")


@pytest.mark.parametrize(
    ("answer", "method", "body"),
    [
        (OK, "GET", b"ok"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "GET", b"ok"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "GET", b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "HEAD", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "GET", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + OK, "GET", b"ok"),
    ],
)
async def test_connection_is_kept(answer: bytes, method: str, body: bytes) -> None:
    """After an answer that is whole, the next call takes the same connection."""
    server = Server(answer, answer, answer)
    async with client_of(server.serve) as client:
        for _ in range(3):
            assert (await get(client, method))[1] == body
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"behind",
    ],
)
async def test_connection_is_not_kept(answer: bytes) -> None:
    """A connection that the server closes, or speaks on unasked, serves no second call."""
    server = Server(answer, answer)
    async with client_of(server.serve) as client:
        for _ in range(2):
            assert await get(client) == (200, b"ok")
    assert server.connections == 2


async def test_connection_that_was_closed_meanwhile_is_not_used() -> None:
    """A server that closes a kept connection costs no call."""
    server = Server(OK, OK, closes=True)
    async with client_of(server.serve) as client:
        for _ in range(2):
            assert await get(client) == (200, b"ok")
            await anyio.wait_all_tasks_blocked()
    assert server.connections == 2


async def test_body_until_the_close_is_read() -> None:
    """An answer without a length ends with its connection."""
    server = Server(b"HTTP/1.1 200 OK\r\n\r\nto the end", closes=True)
    async with client_of(server.serve) as client:
        assert await get(client) == (200, b"to the end")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
    ],
)
async def test_broken_answer_is_told(answer: bytes) -> None:
    """An answer that breaks off, or breaks the rules, raises ServerBroke, and the connection is not used again."""
    server = Server(answer, OK, closes=True)
    async with client_of(server.serve) as client:
        with pytest.raises(ServerBroke):
            await get(client)
        assert await get(client) == (200, b"ok")


async def test_answer_before_the_body_was_read_counts() -> None:
    """A server that refuses and closes without reading the body is heard."""

    async def refusing(stream: SocketStream) -> None:
        async with stream:
            await stream.receive(10)
            await stream.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
            await stream.send_eof()
            with anyio.move_on_after(0.5):
                while True:
                    await stream.receive(1 << 20)

    async with client_of(refusing) as client:
        assert await get(client, "POST", bytes(32 << 20)) == (413, b"no")


async def test_chunks_of_one_read_come_in_one_piece() -> None:
    """However many chunks a read brings, they are given on together."""
    many = b"".join(b"1\r\n%d\r\n" % (number % 10) for number in range(1000))
    server = Server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + many + b"0\r\n\r\n")
    async with client_of(server.serve) as client:
        async with client.call(Call("GET", "/", []), TIMEOUTS, before=lambda: None) as response:
            assert await response.receive() == b"0123456789" * 100
            assert await response.receive() == b""


async def test_nobody_listens() -> None:
    """Where nobody listens, or no name is found, ServerUnreachable says so."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ServerUnreachable):
            await get(Client(f"http://127.0.0.1:{unused.getsockname()[1]}"))


async def test_silence_is_bounded() -> None:
    """A server that takes a call and says nothing is left after the time for a head."""

    async def silent(stream: SocketStream) -> None:
        async with stream:
            await anyio.sleep_forever()

    async with client_of(silent) as client:
        with pytest.raises(TimeoutError):
            async with client.call(Call("GET", "/", []), CallTimeouts(5, 5, 0.05), before=lambda: None):
                raise AssertionError


async def test_nothing_is_sent_when_the_fence_is_down() -> None:
    """What `before` raises comes out, no byte has left, and the connection serves the next call."""
    server = Server(OK)

    def refuse() -> None:
        raise KeyError

    async with client_of(server.serve) as client:
        with pytest.raises(KeyError):
            async with client.call(Call("GET", "/", []), TIMEOUTS, before=refuse):
                raise AssertionError
        assert await get(client) == (200, b"ok")
    assert (server.connections, len(server.requests)) == (1, 1)


async def test_call_that_is_left_early_closes_its_connection() -> None:
    """A caller that does not read to the end gives its connection up."""
    server = Server(OK, OK)
    async with client_of(server.serve) as client:
        async with client.call(Call("GET", "/", []), TIMEOUTS, before=lambda: None):
            pass
        assert await get(client) == (200, b"ok")
    assert server.connections == 2


@pytest.mark.parametrize(
    ("name", "trusted", "reached"), [("localhost", True, True), ("x", True, False), ("localhost", False, False)]
)
async def test_https_is_verified(name: str, trusted: bool, reached: bool) -> None:
    """Over https the call is the same, the connection is kept, and only the right name and authority will do."""
    authority = trustme.CA()
    theirs, ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert(name).configure_cert(theirs)
    if trusted:
        authority.configure_trust(ours)
    server = Server(OK, OK)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        async with anyio.create_task_group() as tasks:
            secure = TLSListener(listener, theirs, standard_compatible=False)
            tasks.start_soon(secure.serve, server.serve)
            client = Client(f"https://localhost:{listener.extra(SocketAttribute.local_port)}", tls=ours)
            if reached:
                assert [await get(client), await get(client, "POST", b"x" * 300_000)] == [(200, b"ok")] * 2
                assert (server.connections, len(server.requests)) == (1, 2)
                assert b"\r\nhost: localhost:" in server.requests[0].lower()
            else:
                with pytest.raises(ServerUnreachable):
                    await get(client)
            await client.aclose()
            tasks.cancel_scope.cancel()
    assert reached or not server.requests


async def fill(response: Response, buffer: memoryview, seconds: float) -> int:
    return await to_thread.run_sync(response.fill, buffer, seconds, from_thread.check_cancelled)


async def test_large_body_comes_where_it_will_lie() -> None:
    """A body is received into a buffer: what is there when the server pauses, all of it, then its end; the connection
    is kept, and waits for no more than the next answer has.
    """
    body = bytes(range(256)) * 8192
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    go_on = anyio.Event()

    async def serve(stream: SocketStream) -> None:
        async with stream:
            await request_on(stream)
            await stream.send(head)
            await stream.send(body[:5])
            await go_on.wait()
            await stream.send(body[5:])
            await request_on(stream)
            await stream.send(OK)

    buffer = bytearray(len(body) + 10)
    async with client_of(serve) as client:
        with memoryview(buffer) as view:
            async with client.call(Call("GET", "/", []), TIMEOUTS, before=lambda: None) as response:
                assert await fill(response, view, 5) == 5
                go_on.set()
                filled = 5
                while came := await fill(response, view[filled:], 5):
                    filled += came
        assert filled == len(body)
        assert buffer[:filled] == body
        assert await get(client) == (200, b"ok")


async def test_silence_in_a_large_body_is_bounded() -> None:
    """A server that falls silent in mid-body is given up on, and so is the wait for it when it is cancelled."""

    async def serve(stream: SocketStream) -> None:
        async with stream:
            await request_on(stream)
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\n")
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await stream.receive()

    async with client_of(serve) as client:
        with memoryview(bytearray(5_000_000)) as view:
            async with client.call(Call("GET", "/", []), TIMEOUTS, before=lambda: None) as response:
                with pytest.raises(TimeoutError):
                    await fill(response, view, 0.3)
                with anyio.fail_after(5), anyio.move_on_after(0.01) as scope:
                    await fill(response, view, 600)
                assert scope.cancelled_caught
