"""Downloads by the transport for bulk, from a real socket: over http and https, whole and broken."""

import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from socket import create_server, socket

import pytest
import trustme

from driver.errors import ContractError, GatewayRefused, GatewayUnavailable
from driver.gateway.answer import tls_context
from driver.gateway.client import GatewayClient, RunCalls
from driver.gateway.wire import Run
from tests.driver.gateway.receiving import all_of, pieces_of

pytestmark = pytest.mark.anyio

RUN = Run(id="run-1", kind="REVIEW", subject="review:1", epoch=3, attempt=0)
BODY = bytes(range(256)) * 20_000

Serve = Callable[[socket, bytes], None]


def head(status: str = "200 OK", *fields: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *fields, "", ""]).encode()


@contextmanager
def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server that hands each connection, and the head of its first request, to `serve`; gives its port."""
    with create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    raw, _ = listener.accept()
                    connection = tls.wrap_socket(raw, server_side=True) if tls else raw
                except OSError:
                    return
                with connection:
                    serve(connection, connection.recv(65_536))

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(2)
            thread.join()


@asynccontextmanager
async def calls(url: str, ca: Path | None = None) -> AsyncIterator[RunCalls]:
    async with GatewayClient(url, "the-token", verify=tls_context(url, ca)) as gateway:
        yield gateway.for_run(RUN, lambda: None)


async def download(port: int) -> tuple[list[int], bytes]:
    async with calls(f"http://127.0.0.1:{port}") as run, run.workspace(0, None) as stream:
        pieces = [piece async for piece in pieces_of(stream)]
    return [len(piece) for piece in pieces], b"".join(pieces)


async def test_a_body_comes_in_few_pieces() -> None:
    """The request carries token and claim; the body is whole, in few pieces, whatever the network cuts."""
    asked: list[bytes] = []

    def serve(connection: socket, request: bytes) -> None:
        asked.append(request)
        connection.sendall(head("200 OK", f"content-length: {len(BODY)}", 'etag: "one"'))
        for start in range(0, len(BODY), 70_000):
            connection.sendall(BODY[start : start + 70_000])

    with serving(serve) as port:
        sizes, body = await download(port)
    assert body == BODY
    assert len(sizes) < len(BODY) / 70_000 / 2
    lines = asked[0].decode().split("\r\n")
    assert lines[0] == "GET /internal/agent/runs/run-1/runtime/workspace HTTP/1.1"
    assert {f"host: 127.0.0.1:{port}", "authorization: Bearer the-token", "accept-encoding: identity"} < set(lines)
    assert {"x-agent-run: run-1", "x-agent-epoch: 3"} < set(lines)


async def test_chunks_and_until_close() -> None:
    """Bodies whose length is not told in the head are whole too."""

    def chunked(connection: socket, _request: bytes) -> None:
        connection.sendall(head("200 OK", "transfer-encoding: chunked"))
        for start in range(0, len(BODY), 300_000):
            piece = BODY[start : start + 300_000]
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        connection.sendall(b"0\r\n\r\n")

    def until_close(connection: socket, _request: bytes) -> None:
        connection.sendall(head() + BODY)

    for serve in (chunked, until_close):
        with serving(serve) as port:
            assert (await download(port))[1] == BODY


@pytest.mark.parametrize("after", [0, 1, 1_500_000])
async def test_what_came_before_a_break_is_given(after: int) -> None:
    """A transfer that breaks gives every byte that came, and then says that it broke."""

    def serve(connection: socket, _request: bytes) -> None:
        connection.sendall(head("200 OK", f"content-length: {len(BODY)}") + BODY[:after])

    came = b""
    with serving(serve) as port:
        async with calls(f"http://127.0.0.1:{port}") as run, run.workspace(0, None) as stream:
            with pytest.raises(GatewayUnavailable, match="the transfer broke off"):  # noqa: PT012 # it is the loop
                async for piece in pieces_of(stream):
                    came += piece
    assert came == BODY[:after]


async def test_refusals_and_nonsense() -> None:
    """A status is what it is for every call; an answer that is no HTTP passes; a redirect is not followed."""
    answers = [
        (head("503 Later", "retry-after: 7", "content-length: 0"), GatewayUnavailable),
        (head("404 No", "content-length: 0"), GatewayRefused),
        (head("302 There", "location: http://127.0.0.1:1/", "content-length: 0"), GatewayRefused),
        (b"nonsense\r\n\r\n", GatewayUnavailable),
        (head("206 Part", "content-range: bytes 5-9/10", "content-length: 5") + b"12345", ContractError),
    ]
    for answer, error in answers:

        def serve(connection: socket, _request: bytes, answer: bytes = answer) -> None:
            connection.sendall(answer)

        with serving(serve) as port:
            async with calls(f"http://127.0.0.1:{port}") as run:
                with pytest.raises(error):
                    async with run.workspace(0, None):
                        pass


async def test_nobody_listens() -> None:
    """A gateway that cannot be reached passes."""
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with calls(f"http://127.0.0.1:{port}") as run:
        with pytest.raises(GatewayUnavailable, match="ConnectError"):
            async with run.workspace(0, None):
                pass


async def test_https(tmp_path: Path) -> None:
    """Over https with the gateway's own authority it is the same, and without it nothing is sent."""
    authority = trustme.CA()
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)

    def serve(connection: socket, _request: bytes) -> None:
        connection.sendall(head("200 OK", f"content-length: {len(BODY)}") + BODY)

    with serving(serve, tls) as port:
        async with calls(f"https://127.0.0.1:{port}", ca) as run, run.workspace(0, None) as stream:
            assert await all_of(stream) == BODY
    asked: list[bytes] = []
    with serving(lambda _connection, request: asked.append(request), tls) as port:
        async with calls(f"https://127.0.0.1:{port}") as run:
            with pytest.raises(GatewayUnavailable):
                async with run.workspace(0, None):
                    pass
    assert asked == []
