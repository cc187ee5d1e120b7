"""A small HTTP/1.1 server on anyio and h11, for the door and for the stub.

Unlike a server framework it lets its user see when the client has gone, take the body as it arrives, and
break an answer off so that the client sees it broken. Framing rules: RFC 9112.
"""

import select
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import anyio
import h11
from anyio.abc import Listener, SocketAttribute, SocketStream

from driver.errors import DriverError

_KIB = 1024
_READ_BYTES: Final = 64 * _KIB
_HEAD_BYTES: Final = 64 * _KIB
_UNWANTED_BYTES: Final = 32 * 1024 * _KIB
_HEAD_SECONDS: Final = 60.0
_CLOSE_SECONDS: Final = 2.0

Headers = Iterable[tuple[str, str]]


class ClientGone(DriverError):
    """The client closed the connection before the exchange was over."""


@dataclass(frozen=True)
class Request:
    """The head of a request. Header names are lower case; a repeated one keeps its order.

    Raises ValueError for a target that is no URL.
    """

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    path: str = field(init=False)
    query: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.target)
        object.__setattr__(self, "path", unquote(parts.path))
        object.__setattr__(self, "query", dict(parse_qsl(parts.query)))

    def header(self, name: str) -> str | None:
        """The first value of a header, or None. `name` is lower case."""
        return next((value for key, value in self.headers if key == name), None)


class Exchange:
    """One request and its answer.

    Calls go in the order: `body` (optional), then `respond`, or `start`, `send`..., `finish`. `abort`
    breaks the answer off at any point.
    """

    def __init__(self, connection: "_Connection", request: Request) -> None:
        self.request = request
        self._connection = connection

    async def receive(self) -> bytes:
        """The next part of the request body, or `b""` at its end.

        Sends `100 Continue` first where the client waits for it. Raises ClientGone when the body breaks off.
        """
        return await self._connection.receive_body()

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
            await self._connection.send(h11.Data(data=data))

    async def finish(self) -> None:
        """The end of the body."""
        await self._connection.send(h11.EndOfMessage())

    async def abort(self, *, reset: bool = False) -> None:
        """Break the answer off so that the client cannot take it for complete.

        With `reset` the connection is reset at once and what the client has not read yet is lost.
        """
        await self._connection.abort(reset=reset)

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


async def serve(listener: Listener[SocketStream], handler: Handler, *, max_connections: int = 1024) -> None:
    """Serve until cancelled; then every connection is closed. A connection past the limit waits unread.

    An exception of the handler breaks its answer off and ends the server: handlers answer their own errors.
    """
    limiter = anyio.Semaphore(max_connections)

    async def connection(stream: SocketStream) -> None:
        async with limiter:
            await _Connection(stream, handler).run()

    await listener.serve(connection)


class _Connection:
    def __init__(self, stream: SocketStream, handler: Handler) -> None:
        self._stream = stream
        self._handler = handler
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)
        self._watching: anyio.CancelScope | None = None
        self.started = False

    async def run(self) -> None:
        try:
            while await self._one_exchange():
                self._h11.start_next_cycle()
                self.started = False
            await self._linger()
        except ClientGone:
            pass  # nobody is left to tell; the connection is closed below
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_SECONDS):
                await self._close()

    async def _one_exchange(self) -> bool:
        """Whether another exchange may follow on this connection."""
        try:
            request = await self._read_head()
        except (h11.RemoteProtocolError, ValueError) as error:
            await self._refuse(error)
            return False
        if request is None:
            return False
        await self._handler(Exchange(self, request))
        return self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE

    async def _read_head(self) -> Request | None:
        event: h11.Event | type[h11.PAUSED] | None = None
        with anyio.move_on_after(_HEAD_SECONDS):
            event = await self._next_event()
        if not isinstance(event, h11.Request):
            return None
        headers = tuple((k.decode("latin-1"), v.decode("latin-1")) for k, v in event.headers)
        if not any(key in ("content-length", "transfer-encoding") for key, _ in headers):
            self._h11.next_event()  # the end of a message without a body needs no data
        return Request(event.method.decode("ascii"), event.target.decode("latin-1"), headers)

    async def _next_event(self) -> "h11.Event | type[h11.PAUSED]":
        while True:
            event = self._h11.next_event()
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value] # NEED_DATA is the only other sentinel
            if self._h11.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            self._h11.receive_data(await self._receive())

    async def _receive(self) -> bytes:
        try:
            return await self._stream.receive(_READ_BYTES)
        except anyio.EndOfStream:
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise ClientGone from error

    async def receive_body(self) -> bytes:
        while self._h11.their_state is h11.SEND_BODY:
            try:
                event = await self._next_event()
            except h11.RemoteProtocolError as error:
                raise ClientGone("the request body broke off") from error
            if isinstance(event, h11.Data) and event.data:
                return bytes(event.data)
        return b""

    async def send_head(self, status: int, headers: Headers) -> None:
        fields = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers]
        if self._h11.their_state is h11.SEND_BODY:
            fields.append((b"connection", b"close"))
        await self.send(h11.Response(status_code=status, headers=fields))
        self.started = True

    async def send(self, event: h11.Event) -> None:
        data = self._h11.send(event)
        if not data:
            return
        try:
            await self._stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise ClientGone from error

    async def abort(self, *, reset: bool) -> None:
        # A client of HTTP/1.0 takes the end of the connection for the end of the body.
        raw = self._stream.extra(SocketAttribute.raw_socket)
        if (reset or self._h11.their_http_version == b"1.0") and raw.fileno() >= 0:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if self._watching is not None:
            self._watching.cancel()
        await anyio.aclose_forcefully(self._stream)

    async def wait_gone(self) -> None:
        descriptor = self._stream.extra(SocketAttribute.raw_socket).fileno()
        if descriptor < 0:
            return
        # EPOLLRDHUP (epoll_ctl(2)) tells of the peer's end of stream without reading what stands before it.
        with select.epoll() as watch, anyio.CancelScope() as self._watching:
            watch.register(descriptor, select.EPOLLRDHUP)
            await anyio.wait_readable(watch)

    async def _linger(self) -> None:
        """Take what the client still sends, so that closing does not reset an answer it has not read yet.

        RFC 9112, section 9.6. Bounded in bytes and time.
        """
        if self._h11.their_state not in (h11.SEND_BODY, h11.ERROR):
            return
        with anyio.move_on_after(_CLOSE_SECONDS):
            taken = 0
            try:
                await self._stream.send_eof()
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
                raise ClientGone from error
            while taken < _UNWANTED_BYTES and (data := await self._receive()):
                taken += len(data)

    async def _close(self) -> None:
        if self._h11.our_state is h11.SEND_BODY:
            await self.abort(reset=False)
        else:
            await self._stream.aclose()

    async def _refuse(self, error: Exception) -> None:
        if self._h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        body = str(error).encode()
        head = h11.Response(
            status_code=status,
            headers=[
                ("content-type", "text/plain"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ],
        )
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            await self.send(event)
