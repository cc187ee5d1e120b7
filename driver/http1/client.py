"""A client of one server: connections that are kept between calls, each for one call at a time.

It is small on purpose: no redirects, no cookies, no proxy variables, no decoding, no second try.
"""

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import anyio
import h11

from driver.errors import DriverError
from driver.http1.server_connection import ServerConnection
from driver.http1.stream import TlsStream, connect

_IDLE_CONNECTIONS: Final = 64

Headers = list[tuple[str, str]]


class ServerUnreachable(DriverError):
    """No connection to the server could be made."""


@dataclass(frozen=True)
class CallTimeouts:
    """In seconds: to connect, for the server to take one slice of the body, and from then to its answer's head."""

    connect: float
    send: float
    head: float


@dataclass(frozen=True)
class Call:
    """What is sent. `target` stands behind the client's URL; header names are lower case, content-length is added."""

    method: str
    target: str
    headers: Headers
    body: bytes | bytearray | None = None


class Response:
    """The head of an answer; its body is taken piece by piece. Header names are lower case."""

    def __init__(self, connection: ServerConnection, head: h11.Response) -> None:
        self._connection = connection
        self.status = head.status_code
        self.headers: Headers = [(key.decode("latin-1"), value.decode("latin-1")) for key, value in head.headers]

    def header(self, name: str) -> str:
        """The first value of a header, or an empty string. `name` is lower case."""
        return next((value for key, value in self.headers if key == name), "")

    async def receive(self, seconds: float | None = None) -> bytes:
        """The next bytes of the body, or `b""` at its clean end; each wait is at most `seconds`.

        Raises ServerBroke and TimeoutError.
        """
        return await self._connection.receive(seconds)

    def fill(self, buffer: memoryview, seconds: float | None, check: Callable[[], None]) -> int:
        """Put what comes of the body at the beginning of `buffer`: how many bytes, 0 at its clean end.

        Blocks, for a worker thread of anyio; `check` is called while it waits, and may raise. Raises as `receive` does,
        once what came before was given.
        """
        return self._connection.fill(buffer, seconds, check)


class Client:
    """Calls to one server. It opens a connection whenever none is free."""

    def __init__(self, url: str, *, tls: ssl.SSLContext | None = None) -> None:
        """`url` is http or https, perhaps with a path. `tls` is what https is verified with: by default the system."""
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._authority = parts.netloc
        self._prefix = parts.path.rstrip("/")
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._idle: list[ServerConnection] = []

    async def aclose(self) -> None:
        """Close the connections that nobody uses; to be called when all calls are over."""
        while self._idle:
            await self._idle.pop().close()

    @asynccontextmanager
    async def call(self, call: Call, timeouts: CallTimeouts, *, before: Callable[[], None]) -> AsyncIterator[Response]:
        """Send one call; gives the response once its head is there, when the call's body is needed no more.

        `before` is called when the connection stands, right before the first byte is sent. When the block is
        left, the connection is free for the next call, or closed. Raises ServerUnreachable, ServerBroke,
        TimeoutError, and what `before` raises.
        """
        connection = await self._kept() or await self._connect(timeouts.connect)
        try:
            before()
            await connection.send(self._head(call), call.body or b"", timeouts.send)
            with anyio.fail_after(timeouts.head):
                head = await connection.response()
            yield Response(connection, head)
        finally:
            if len(self._idle) < _IDLE_CONNECTIONS and connection.rest():
                self._idle.append(connection)
            else:
                await connection.close()

    def _head(self, call: Call) -> h11.Request:
        headers = [("host", self._authority), *call.headers]
        if call.body is not None:
            headers.append(("content-length", str(len(call.body))))
        return h11.Request(
            method=call.method,
            target=self._prefix + call.target,
            headers=[(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers],
        )

    async def _kept(self) -> ServerConnection | None:
        """The connection that was used last, so that those not needed any more grow old."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fresh():
                return connection
            await connection.close()
        return None

    async def _connect(self, seconds: float) -> ServerConnection:
        try:
            with anyio.fail_after(seconds):
                if self._tls is None:
                    return ServerConnection(await connect(self._host, self._port))
                secured = await anyio.connect_tcp(
                    self._host, self._port, ssl_context=self._tls, tls_standard_compatible=False
                )
                return ServerConnection(TlsStream(secured))
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            raise ServerUnreachable(f"{self._authority} cannot be reached ({error!r})") from error
