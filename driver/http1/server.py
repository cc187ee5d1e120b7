"""The server: what a handler sees of an exchange, and how connections are let in."""

import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import anyio
from anyio.abc import Listener, SocketAttribute, SocketStream
from anyio.lowlevel import checkpoint
from anyio.streams.stapled import MultiListener

from driver.http1.connection import ClientGone, Connection, Headers, Patience
from driver.http1.departures import Departures
from driver.http1.request import Request
from driver.http1.stream import PlainStream

_MOST_CONNECTIONS: Final = 512
_PAUSE_SECONDS: Final = 0.1
# What accept(2) fails with for want of resources, or because the client has gone again: the next one may work.
_PASSING: Final = frozenset(
    {errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EPERM, errno.EPROTO}
)


class Exchange:
    """One request and its answer.

    Calls go in the order: `body` (optional), then `respond`, or `start`, `send`..., `finish`. `abort`
    breaks the answer off at any point.
    """

    def __init__(self, connection: Connection, request: Request) -> None:
        self.request = request
        self._connection = connection

    async def receive(self) -> bytes:
        """The next part of the request body, or `b""` at its end.

        Sends `100 Continue` first where the client waits for it. Raises ClientGone when the body breaks off.
        """
        return await self._connection.receive_body()

    async def receive_into(self, buffer: bytearray) -> None:
        """Fill `buffer`, as long as the request's content-length, with the whole body; as `receive` otherwise."""
        await self._connection.receive_into(buffer)

    async def body(self) -> AsyncIterator[bytes]:
        """The request body as it arrives; see `receive`."""
        while chunk := await self.receive():
            yield chunk

    async def read(self, limit: int) -> bytes | None:
        """The whole body, or None once it is longer than `limit` bytes."""
        parts = bytearray()
        while chunk := await self.receive():
            parts += chunk
            if len(parts) > limit:
                return None
        return bytes(parts)

    async def respond(self, status: int, headers: Headers = (), body: bytes = b"") -> None:
        """A complete answer of known length."""
        await self.start(status, [*headers, ("content-length", str(len(body)))])
        await self.send(body)
        await self.finish()

    async def start(self, status: int, headers: Headers = ()) -> None:
        """The head. Without a content-length the body is sent in chunks.

        While the request body is unread, the answer announces that the connection closes after it.
        """
        await self._connection.send_head(status, headers)

    async def send(self, data: bytes) -> None:
        """Part of the body; returns when the socket took it, so a slow reader slows the caller.

        The answer to a HEAD request has no body, so nothing is sent then (RFC 9110, section 9.3.2).
        """
        if data and self.request.method != "HEAD":
            await self._connection.send_data(data)

    async def finish(self) -> None:
        """The end of the body."""
        await self._connection.send_end()

    async def abort(self, *, reset: bool = False) -> None:
        """Break the answer off so that the client cannot take it for complete.

        With `reset` the connection is reset at once and what the client has not read yet is lost.
        """
        self._connection.abort(reset=reset)

    async def wait_gone(self) -> None:
        """Return when the client has closed its side of the connection, or the answer was broken off.

        Reads nothing, so it works at any time; only a client that goes away behind more unread bytes than the
        socket buffers hold is not seen before they are read.
        """
        await self._connection.wait_gone()

    @property
    def started(self) -> bool:
        """Whether the head of the answer is out, so that no other answer can be given."""
        return self._connection.started


Handler = Callable[[Exchange], Awaitable[None]]


async def serve(
    listener: Listener[SocketStream],
    handler: Handler,
    *,
    max_connections: int = _MOST_CONNECTIONS,
    patience: Patience | None = None,
) -> None:
    """Serve until cancelled; then every connection is closed.

    A connection past the limit is not accepted before another one has ended, so it costs no file descriptor.
    An exception of the handler breaks its answer off and ends the server: handlers answer their own errors.
    """
    places = anyio.Semaphore(max_connections)
    departures = Departures()

    async def connection(stream: PlainStream) -> None:
        try:
            await _serve_connection(Connection(stream, departures, patience or Patience()), handler)
        finally:
            places.release()

    async def accept_all(raw: socket.socket) -> None:
        while True:
            await places.acquire()
            tasks.start_soon(connection, await _accept(raw))

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(departures.run)
            for one in listener.listeners if isinstance(listener, MultiListener) else [listener]:
                tasks.start_soon(accept_all, one.extra(SocketAttribute.raw_socket))
    finally:
        departures.close()


async def _accept(listener: socket.socket) -> PlainStream:
    while True:
        await checkpoint()
        try:
            raw, _ = listener.accept()
        except BlockingIOError:
            await anyio.wait_readable(listener)
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            await anyio.sleep(_PAUSE_SECONDS)
        else:
            raw.setblocking(False)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return PlainStream(raw)


async def _serve_connection(connection: Connection, handler: Handler) -> None:
    try:
        while request := await connection.next_request():
            await handler(Exchange(connection, request))
        await connection.linger()
    except ClientGone:
        pass  # nobody is left to tell; the connection is closed below
    finally:
        connection.close()
