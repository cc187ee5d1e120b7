"""One connection to a server: h11 reads and writes the heads, the bodies pass in as few pieces as they come in."""

import select
from collections.abc import Callable
from typing import Final

import anyio
import h11

from driver.errors import DriverError
from driver.http1.bodies import Body, BodyBroke, BodyUntilClose, ChunkedBody, SizedBody
from driver.http1.looped import on_the_loop
from driver.http1.stream import PlainStream, Stream, StreamBroke

_KIB = 1024
RECEIVED_BYTES: Final = 128 * _KIB
"""The most that one `receive` gives, but for what came with the head: what is read at once."""

_SLICE: Final = 256 * _KIB
_HEAD_BYTES: Final = 64 * _KIB
_IDLE_SECONDS: Final = 3.0


class ServerBroke(DriverError):
    """The server broke the exchange off, or broke the rules of HTTP."""


class ServerConnection:
    """Carries one call after the other."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._heads = h11.Connection(h11.CLIENT)
        self._method = b""
        self._body: Body = SizedBody(0)
        self._came_with_head = b""
        self._over = b""
        self._is_kept = True
        self._rests_since = 0.0

    async def send(self, head: h11.Request, body: bytes | bytearray, seconds: float) -> None:
        """Send a whole call; each slice of it may take `seconds`. Raises TimeoutError.

        A server that closes meanwhile may have answered before it had read everything: `response` will tell.
        """
        self._is_kept = False
        self._method = head.method
        self._heads = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        try:
            await self._stream.send(self._heads.send(head) or b"", seconds=seconds)
            with memoryview(body) as view:
                for start in range(0, len(body), _SLICE):
                    await self._stream.send(view[start : start + _SLICE], seconds=seconds)
        except StreamBroke:
            return
        self._is_kept = True

    async def response(self) -> h11.Response:
        """The head of the answer. Raises ServerBroke; waits without a bound."""
        is_sent, self._is_kept = self._is_kept, False
        try:
            while not isinstance(event := self._heads.next_event(), h11.Response):
                if event is h11.NEED_DATA:
                    self._heads.receive_data(await self._read())
                elif not isinstance(event, h11.InformationalResponse):
                    raise ServerBroke("the connection was closed before an answer came")
        except h11.RemoteProtocolError as error:
            raise ServerBroke(f"there was no valid answer ({error})") from error
        self._body = _body_of(self._method, event)
        self._came_with_head = self._heads.trailing_data[0]
        self._is_kept = is_sent and _stays_open(event)
        return event

    async def receive(self, seconds: float | None = None) -> bytes:
        """What is there of the body, or `b""` at its end; each wait is at most `seconds`.

        Raises ServerBroke and TimeoutError.
        """
        try:
            piece = self._body.feed(self._came_with_head)
            self._came_with_head = b""
            while not piece and not self._body.ended:
                if data := await self._read(seconds):
                    piece = self._body.feed(data)
                else:
                    self._body.end()
        except BodyBroke as error:
            raise ServerBroke(str(error)) from error
        return piece

    def fill(self, buffer: memoryview, seconds: float | None, check: Callable[[], None]) -> int:
        """Put what comes of the body at the beginning of `buffer`, in a worker thread; as Response.fill."""
        body, stream = self._body, self._stream
        if isinstance(body, SizedBody) and isinstance(stream, PlainStream) and not (self._came_with_head or self._over):
            if body.ended:
                return 0
            try:
                came = stream.fill(buffer[: body.left], seconds, check)
                body.take(came) if came else body.end()
            except StreamBroke as error:
                raise ServerBroke("the connection broke") from error
            except BodyBroke as error:
                raise ServerBroke(str(error)) from error
            return came
        piece = self._over or on_the_loop(self.receive, seconds)
        self._over = piece[len(buffer) :]
        piece = piece[: len(buffer)]
        buffer[: len(piece)] = piece
        return len(piece)

    async def _read(self, seconds: float | None = None) -> bytes:
        try:
            return await self._stream.receive(RECEIVED_BYTES, seconds)
        except StreamBroke as error:
            raise ServerBroke("the connection broke") from error

    def rest(self) -> bool:
        """Whether it can be kept for another call: this one is whole, and the server said nothing behind it."""
        self._rests_since = anyio.current_time()
        return self._is_kept and self._body.ended and not (self._body.rest or self._came_with_head or self._over)

    def is_fresh(self) -> bool:
        """Whether it has not rested for long, and the server has neither closed it nor said anything since."""
        descriptor = self._stream.fileno()
        if anyio.current_time() - self._rests_since > _IDLE_SECONDS or descriptor < 0:
            return False
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return not poll.poll(0)

    async def close(self) -> None:
        """Close at once, whatever is going on."""
        with anyio.CancelScope(shield=True):
            await self._stream.aclose()


def _body_of(method: bytes, response: h11.Response) -> Body:
    """How the answer's body is told (RFC 9112, section 6.3); h11 has let only `chunked` through."""
    told = dict(response.headers)
    if method == b"HEAD" or response.status_code in (204, 304):
        return SizedBody(0)
    if b"transfer-encoding" in told:
        return ChunkedBody()
    if b"content-length" in told:
        return SizedBody(int(told[b"content-length"]))
    return BodyUntilClose()


def _stays_open(response: h11.Response) -> bool:
    options = b",".join(value for key, value in response.headers if key == b"connection").lower()
    return response.http_version >= b"1.1" and b"close" not in [option.strip() for option in options.split(b",")]
