"""One connection of the server: h11 reads and writes the heads, the bodies pass in as few pieces as they come in."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import anyio
import h11

from driver.errors import DriverError
from driver.http1.bodies import Body, BodyBroke, ChunkedBody, SizedBody
from driver.http1.departures import Departures
from driver.http1.request import Request
from driver.http1.stream import PlainStream, StreamBroke

_KIB = 1024
_READ_BYTES: Final = 128 * _KIB
_HEAD_READ_BYTES: Final = 16 * _KIB
_HEAD_BYTES: Final = 64 * _KIB
_UNWANTED_BYTES: Final = 32 * 1024 * _KIB
_CLOSE_SECONDS: Final = 2.0

Headers = Iterable[tuple[str, str]]


class ClientGone(DriverError):
    """The client closed the connection before the exchange was over."""


class BodyStalled(DriverError):
    """The client sent nothing of its request body for too long."""


@dataclass(frozen=True)
class Patience:
    """How long a client may take, in seconds: for a whole head, idle time before it included, and from one part of
    a request body to the next. How slowly it reads is its own affair.
    """

    head: float = 60.0
    body: float = 60.0


class Connection:
    """Carries one exchange after the other; an answer that is not finished looks broken when it is closed."""

    def __init__(self, stream: PlainStream, departures: Departures, patience: Patience) -> None:
        self._stream = stream
        self._descriptor = stream.fileno()
        self._patience = patience
        self._heads = _heads()
        self._body: Body = SizedBody(0)
        self._behind_head = b""
        self._departures = departures
        self._gone = anyio.Event()
        self._closed = False
        self.started = False
        departures.watch(self._descriptor, self._gone.set)

    async def next_request(self) -> Request | None:
        """The next request, or None when none can follow. One that breaks the rules is answered here."""
        if self._heads.our_state is h11.DONE and self._body.ended:
            # h11 was told of no body, so it takes no connection for another cycle.
            behind = self._behind_head + self._body.rest
            self._heads, self._body, self._behind_head = _heads(), SizedBody(0), b""
            self.started = False
            if behind:
                self._heads.receive_data(behind)
        elif self._heads.our_state is not h11.IDLE:
            return None
        try:
            return await self._read_head()
        except (h11.RemoteProtocolError, ValueError) as error:
            await self._refuse(error)
            return None

    async def _read_head(self) -> Request | None:
        event: object = None
        with anyio.move_on_after(self._patience.head):
            while (event := self._heads.next_event()) is h11.NEED_DATA:
                self._heads.receive_data(await self._receive(_HEAD_READ_BYTES))
        if not isinstance(event, h11.Request):
            return None
        # h11 bounds only what is not complete yet.
        if len(event.target) + sum(len(key) + len(value) + 4 for key, value in event.headers) > _HEAD_BYTES:
            raise h11.RemoteProtocolError("the head is too long", error_status_hint=431)
        headers = tuple((k.decode("latin-1"), v.decode("latin-1")) for k, v in event.headers)
        request = Request(event.method.decode("ascii"), event.target.decode("latin-1"), headers)
        self._behind_head = self._heads.trailing_data[0]
        self._body = _body_of(request)
        return request

    async def receive_body(self) -> bytes:
        """The next part of the request body, or `b""` at its end. Raises ClientGone and BodyStalled."""
        piece = b""
        try:
            if self._behind_head and not self._body.ended:
                behind, self._behind_head = self._behind_head, b""
                piece = self._body.feed(behind)
            while not piece and not self._body.ended:
                await self._continue()
                if data := await self._receive(_READ_BYTES, self._patience.body):
                    piece = self._body.feed(data)
                else:
                    self._body.end()
        except BodyBroke as error:
            raise ClientGone("the request body broke off") from error
        except TimeoutError as error:
            raise self._stalled() from error
        return piece

    async def receive_into(self, buffer: bytearray) -> None:
        """Fill `buffer`, which has the announced length, with the whole request body. Raises as `receive_body` does."""
        came_with_head = self._behind_head[: len(buffer)]
        self._behind_head = self._behind_head[len(buffer) :]
        filled = len(came_with_head)
        buffer[:filled] = came_with_head
        with memoryview(buffer) as view:
            while filled < len(buffer):
                await self._continue()
                try:
                    came = await self._stream.receive_into(view[filled:], self._patience.body)
                except TimeoutError as error:
                    raise self._stalled() from error
                except StreamBroke as error:
                    raise ClientGone from error
                if not came:
                    raise ClientGone("the request body broke off")
                filled += came
        self._body = SizedBody(0)

    def _stalled(self) -> BodyStalled:
        return BodyStalled(f"nothing of the request body came for {self._patience.body:g} s")

    async def _continue(self) -> None:
        """Send `100 Continue` where the client waits for it (RFC 9110, section 10.1.1)."""
        if self._heads.they_are_waiting_for_100_continue:
            await self._send_event(h11.InformationalResponse(status_code=100, headers=[]))

    async def send_head(self, status: int, headers: Headers) -> None:
        fields = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers]
        if not self._body.ended or self._heads.their_state is h11.ERROR:
            fields.append((b"connection", b"close"))
        await self._send_event(h11.Response(status_code=status, headers=fields))
        self.started = True

    async def send_data(self, data: bytes) -> None:
        await self._send(*self._heads.send_with_data_passthrough(h11.Data(data=data)) or ())

    async def send_end(self) -> None:
        await self._send_event(h11.EndOfMessage())

    async def _send_event(self, event: h11.Event) -> None:
        await self._send(self._heads.send(event) or b"")

    async def _send(self, *pieces: bytes) -> None:
        try:
            await self._stream.send(*pieces)
        except StreamBroke as error:
            raise ClientGone from error

    async def _receive(self, most: int, seconds: float | None = None) -> bytes:
        try:
            return await self._stream.receive(most, seconds)
        except StreamBroke as error:
            raise ClientGone from error

    async def _refuse(self, error: Exception) -> None:
        if self._heads.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        body = str(error).encode()
        # What is behind a head that cannot be trusted is not known to end anywhere.
        self._body = ChunkedBody()
        await self.send_head(status, [("content-type", "text/plain"), ("content-length", str(len(body)))])
        await self.send_data(body)
        await self.send_end()

    async def wait_gone(self) -> None:
        """Return when the client has closed its side of the connection, or the connection was closed here."""
        await self._gone.wait()

    def abort(self, *, reset: bool) -> None:
        """Close at once. A client of HTTP/1.0 would take that for the end of the body, so it gets a reset."""
        self._close(reset=reset or self._heads.their_http_version == b"1.0")

    def close(self) -> None:
        """Close so that a whole answer stays readable, and that one which is not whole looks broken."""
        if self._heads.our_state is h11.SEND_BODY:
            self.abort(reset=False)
        else:
            self._close(reset=False)

    def _close(self, *, reset: bool) -> None:
        if self._closed:
            return
        self._closed = True
        self._departures.forget(self._descriptor)
        self._gone.set()
        self._stream.close(reset=reset)

    async def linger(self) -> None:
        """Take what the client still sends, so that closing does not reset an answer it has not read yet.

        RFC 9112, section 9.6. Bounded in bytes and time.
        """
        if self._closed or self._body.ended:
            return
        taken = 0
        with anyio.move_on_after(_CLOSE_SECONDS), suppress(StreamBroke):
            self._stream.send_eof()
            while taken < _UNWANTED_BYTES and (data := await self._stream.receive(_READ_BYTES)):
                taken += len(data)


def _heads() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES + _KIB)


def _body_of(request: Request) -> Body:
    """How the request's body is told (RFC 9112, section 6.3); h11 has let only `chunked` through."""
    if request.header("transfer-encoding") is not None:
        return ChunkedBody()
    return SizedBody(int(request.header("content-length") or 0))
