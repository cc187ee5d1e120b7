"""The token goes to the gateway's origin only: real sockets, real TLS, a proxy that must stay unused."""

import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import pytest
import trustme

from driver.clock import BootClock
from driver.errors import ContractError, GatewayRefused, GatewayUnavailable
from driver.gateway import wire
from driver.gateway.answer import tls_context
from driver.gateway.client import GatewayClient
from driver.gateway.pull import NoWork, PullClient

pytestmark = pytest.mark.anyio

TOKEN = "the-token-0123456789"


class Server:
    """An HTTP server in a thread that answers every request alike and keeps what it was sent."""

    def __init__(self, status: int = 204, location: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        seen: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                seen.append(self.headers.get("authorization", ""))
                self.rfile.read(int(self.headers.get("content-length", "0")))
                self.send_response(status)
                if location:
                    self.send_header("location", location)
                self.end_headers()

            do_CONNECT = do_GET = do_POST  # noqa: N815 # the names that http.server calls

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.seen = seen
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def serving(status: int = 204, location: str | None = None, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(status, location, tls)
    try:
        yield server
    finally:
        server.close()


async def pull(url: str, ca: Path | None = None) -> None:
    """One pull from a server that has no work."""
    async with PullClient(url, TOKEN, clock=BootClock(), verify=tls_context(url, ca)) as pulls:
        assert (await pulls.next(["REVIEW"])).read() == NoWork(None)


async def renew(url: str, ca: Path | None = None) -> None:
    """One call about a run to a server that answers 204, which is no answer to it."""
    async with GatewayClient(url, TOKEN, verify=tls_context(url, ca)) as gateway:
        with pytest.raises(ContractError, match="answered 204"):
            await gateway.for_run(_run(), lambda: None).renew(seconds=10)


Ask = Callable[..., Awaitable[None]]


@pytest.fixture(params=[pull, renew])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Each way to the gateway."""
    asking: Ask = request.param
    return asking


async def test_no_proxy_is_used(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says, the gateway is spoken to directly."""
    with serving() as proxy, serving() as server:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://{proxy.address}")
        await ask(f"http://{server.address}")
        assert server.seen == [f"Bearer {TOKEN}"]
        assert proxy.seen == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(ask: Ask, status: int) -> None:
    """A redirect is a refusal, and the place that it names hears nothing."""
    with serving() as elsewhere, serving(status, f"http://{elsewhere.address}/") as server:
        with pytest.raises(GatewayRefused, match=str(status)):
            await ask(f"http://{server.address}")
        assert elsewhere.seen == []


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_server(authority: trustme.CA) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with serving(tls=context) as server:
        yield server


async def test_extra_authority(ask: Ask, tls_server: Server, authority: trustme.CA, tmp_path: Path) -> None:
    """With the gateway's own authority as the extra one, https works."""
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    await ask(f"https://{tls_server.address}", file)
    assert tls_server.seen == [f"Bearer {TOKEN}"]


async def test_unknown_authority(ask: Ask, tls_server: Server) -> None:
    """A gateway that nobody vouches for never sees the token."""
    with pytest.raises(GatewayUnavailable, match="certificate verify failed"):
        await ask(f"https://{tls_server.address}")
    assert tls_server.seen == []


async def test_certificate_for_another_name(ask: Ask, authority: trustme.CA, tmp_path: Path) -> None:
    """A certificate of the right authority for another address is refused too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("10.9.8.7").configure_cert(context)
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    with serving(tls=context) as server:
        with pytest.raises(GatewayUnavailable, match="IP address mismatch"):
            await ask(f"https://{server.address}", file)
        assert server.seen == []


async def test_answer_that_never_ends_is_given_up() -> None:
    """A gateway that accepts and says nothing costs a bounded time."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, GatewayClient(f"http://127.0.0.1:{port}", TOKEN, verify=False) as gateway:
        calls = gateway.for_run(_run(), lambda: None)
        with pytest.raises(GatewayUnavailable, match=r"renew: (no complete answer within 0.2 s|ReadTimeout)"):
            await calls.renew(seconds=0.2)


def _run() -> wire.Run:
    return wire.Run(id="run-1", kind="REVIEW", subject="review:1", epoch=1, attempt=0)
