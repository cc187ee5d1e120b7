"""One connection of the server: h11's view of it on top, the socket below."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import anyio
import h11

from driver.errors import DriverError
from driver.http1.departures import Departures
from driver.http1.request import Request
from driver.http1.stream import ClientGone, ClientStream

_KIB = 1024
_READ_BYTES: Final = 256 * _KIB
_HEAD_BYTES: Final = 64 * _KIB
_UNWANTED_BYTES: Final = 32 * 1024 * _KIB
_CLOSE_SECONDS: Final = 2.0

Headers = Iterable[tuple[str, str]]


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

    def __init__(self, stream: ClientStream, departures: Departures, patience: Patience) -> None:
        self._stream = stream
        self._patience = patience
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES + _KIB)
        self._departures = departures
        self._gone = anyio.Event()
        self._closed = False
        self.started = False
        departures.watch(stream.descriptor, self._gone.set)

    async def next_request(self) -> Request | None:
        """The next request, or None when none can follow. One that breaks the rules is answered here."""
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
            self.started = False
        elif self._h11.our_state is not h11.IDLE:
            return None
        try:
            return await self._read_head()
        except (h11.RemoteProtocolError, ValueError) as error:
            await self._refuse(error)
            return None

    async def _read_head(self) -> Request | None:
        event: h11.Event | type[h11.PAUSED] | None = None
        with anyio.move_on_after(self._patience.head):
            event = await self._next_event()
        if not isinstance(event, h11.Request):
            return None
        # h11 bounds only what is not complete yet.
        if len(event.target) + sum(len(key) + len(value) + 4 for key, value in event.headers) > _HEAD_BYTES:
            raise h11.RemoteProtocolError("the head is too long", error_status_hint=431)
        headers = tuple((k.decode("latin-1"), v.decode("latin-1")) for k, v in event.headers)
        request = Request(event.method.decode("ascii"), event.target.decode("latin-1"), headers)
        if not request.has_body:
            self._h11.next_event()  # the end of a message without a body needs no data
        return request

    async def _next_event(self) -> "h11.Event | type[h11.PAUSED]":
        while True:
            event = self._h11.next_event()
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value] # NEED_DATA is the only other sentinel
            if self._h11.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            self._h11.receive_data(await self._stream.receive(_READ_BYTES))

    async def receive_body(self) -> bytes:
        """The next part of the request body, or `b""` at its end. Raises ClientGone and BodyStalled."""
        while self._h11.their_state is h11.SEND_BODY:
            try:
                with anyio.fail_after(self._patience.body):
                    event = await self._next_event()
            except h11.RemoteProtocolError as error:
                raise ClientGone("the request body broke off") from error
            except TimeoutError as error:
                raise BodyStalled(f"nothing of the request body came for {self._patience.body:g} s") from error
            if isinstance(event, h11.Data) and event.data:
                return bytes(event.data)
        return b""

    async def send_head(self, status: int, headers: Headers) -> None:
        fields = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers]
        if self._h11.their_state in (h11.SEND_BODY, h11.ERROR):
            fields.append((b"connection", b"close"))
        await self.send(h11.Response(status_code=status, headers=fields))
        self.started = True

    async def send(self, event: h11.Event) -> None:
        data = self._h11.send(event)
        if data:
            await self._stream.send(data)

    async def _refuse(self, error: Exception) -> None:
        if self._h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        body = str(error).encode()
        await self.send_head(status, [("content-type", "text/plain"), ("content-length", str(len(body)))])
        await self.send(h11.Data(data=body))
        await self.send(h11.EndOfMessage())

    async def wait_gone(self) -> None:
        """Return when the client has closed its side of the connection, or the connection was closed here."""
        await self._gone.wait()

    def abort(self, *, reset: bool) -> None:
        """Close at once. A client of HTTP/1.0 would take that for the end of the body, so it gets a reset."""
        self._close(reset=reset or self._h11.their_http_version == b"1.0")

    def close(self) -> None:
        """Close so that a whole answer stays readable, and that one which is not whole looks broken."""
        if self._h11.our_state is h11.SEND_BODY:
            self.abort(reset=False)
        else:
            self._close(reset=False)

    def _close(self, *, reset: bool) -> None:
        if self._closed:
            return
        self._closed = True
        self._departures.forget(self._stream.descriptor)
        self._gone.set()
        self._stream.close(reset=reset)

    async def linger(self) -> None:
        """Take what the client still sends, so that closing does not reset an answer it has not read yet.

        RFC 9112, section 9.6. Bounded in bytes and time.
        """
        if self._closed or self._h11.their_state not in (h11.SEND_BODY, h11.ERROR):
            return
        self._stream.send_eof()
        taken = 0
        with anyio.move_on_after(_CLOSE_SECONDS):
            while taken < _UNWANTED_BYTES and (data := await self._stream.receive(_READ_BYTES)):
                taken += len(data)
