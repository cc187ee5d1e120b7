"""Sockets that are read only when somebody asks for bytes.

anyio's own stream goes on reading an accepted connection between two calls of `receive`, without a bound: the
bodies of calls that wait for a permit would all come to lie in memory. And at a model's pace, thousands of small
pieces a second, what stands between the caller and the system call is most of the cost; here that is little.
"""

import select
import socket
import struct
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, Protocol, TypeVar

import anyio
from anyio.abc import SocketAttribute
from anyio.lowlevel import checkpoint
from anyio.streams.tls import TLSStream

from driver.errors import DriverError

T = TypeVar("T", bound=bytes | int)

_TURN_BYTES: Final = 128 * 1024
"""How much may pass through a socket without a turn for other tasks: that takes about 100 microseconds."""

_CALL_BYTES: Final = 16 * 1024
"""What the shortest call counts for: it takes as long as copying so many bytes."""

_CALL_MOST_BYTES: Final = 256 * 1024
"""How much one system call may move: with a fast peer the kernel would go on for megabytes."""


_WORTH_WAKING_BYTES: Final = 512 * 1024
_PAUSE_SECONDS: Final = 0.1
"""`fill` sleeps until so many bytes are there, or for so long: woken for each segment that a fast peer sends, it would
take most of a core."""


class StreamBroke(DriverError):
    """The other side reset the connection, or it was closed on this side."""


class Stream(Protocol):
    """A connection. One task may receive and one may send at a time; `seconds` bound one wait, None does not."""

    async def receive(self, most: int, seconds: float | None = None) -> bytes:
        """Up to `most` bytes, or `b""` at the end. Raises StreamBroke and TimeoutError."""
        ...

    async def send(self, *pieces: bytes | memoryview, seconds: float | None = None) -> None:
        """Return when the kernel has taken all of it. Raises StreamBroke and TimeoutError."""
        ...

    def fileno(self) -> int:
        """The socket's descriptor, or -1 when it is closed."""
        ...

    async def aclose(self) -> None:
        """Close at once."""
        ...


class PlainStream:
    """A connected, non-blocking socket."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        self._in_turn = 0

    def fileno(self) -> int:
        return self._raw.fileno()

    async def receive(self, most: int, seconds: float | None = None) -> bytes:
        return await self._when(anyio.wait_readable, seconds, lambda: self._raw.recv(most))

    async def receive_into(self, buffer: memoryview, seconds: float | None = None) -> int:
        """Bytes that came to stand at the beginning of `buffer`; 0 at the end. Raises as `receive` does."""
        return await self._when(
            anyio.wait_readable, seconds, lambda: self._raw.recv_into(buffer, min(len(buffer), _CALL_MOST_BYTES))
        )

    def fill(self, buffer: memoryview, seconds: float | None, check: Callable[[], None]) -> int:
        """Receive until `buffer` is full, the sender pauses or has ended; how many bytes, 0 at the end.

        For a worker thread: it blocks, for at most `seconds` without a byte, and calls `check` ten times in a second
        then, which may raise. Raises as `receive` does. A body of hundreds of megabytes costs the event loop nothing.
        """
        filled, is_silent, began = 0, False, monotonic()
        readable = select.poll()
        readable.register(self._raw, select.POLLIN)
        try:
            while filled < len(buffer):
                try:
                    came = self._raw.recv_into(buffer[filled:])
                except BlockingIOError:
                    if filled and is_silent:
                        break
                    check()
                    if seconds is not None and monotonic() - began >= seconds:
                        raise TimeoutError from None
                    self._wake_for(min(len(buffer) - filled, _WORTH_WAKING_BYTES))
                    is_silent = not readable.poll(_PAUSE_SECONDS * 1000)
                else:
                    filled += came
                    if not came:
                        break
            self._wake_for(1)
        except TimeoutError:
            raise
        except OSError as error:
            if not filled:
                raise StreamBroke from error
        return filled

    def _wake_for(self, size: int) -> None:
        """Tell the kernel how many bytes make the socket readable (socket(7), SO_RCVLOWAT)."""
        self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    async def send(self, *pieces: bytes | memoryview, seconds: float | None = None) -> None:
        left = [memoryview(piece) for piece in pieces if piece]
        while left:
            sent = await self._when(anyio.wait_writable, seconds, lambda: self._raw.sendmsg(_bounded(left)))
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = left[0][sent:]

    async def _when(
        self, wait: Callable[[socket.socket], Awaitable[None]], seconds: float | None, act: Callable[[], T]
    ) -> T:
        """What `act` returns once it does not block; that it does not at once, other tasks get a turn now and then.

        A cancel may lose what `act` did: nobody uses a connection any more on which something was cancelled.
        """
        try:
            done = act()
        except BlockingIOError:
            return await self._blocked(wait, seconds, act)
        except OSError as error:
            raise StreamBroke from error
        self._in_turn += max(len(done) if isinstance(done, bytes) else done, _CALL_BYTES)
        if self._in_turn >= _TURN_BYTES:
            self._in_turn = 0
            await checkpoint()
        return done

    async def _blocked(
        self, wait: Callable[[socket.socket], Awaitable[None]], seconds: float | None, act: Callable[[], T]
    ) -> T:
        self._in_turn = 0
        while True:
            try:
                with anyio.fail_after(seconds):
                    await wait(self._raw)
            except anyio.ClosedResourceError as error:
                raise StreamBroke from error
            try:
                return act()
            except BlockingIOError:
                pass
            except OSError as error:
                raise StreamBroke from error

    def send_eof(self) -> None:
        """Tell the other side that nothing more comes. Raises StreamBroke."""
        try:
            self._raw.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise StreamBroke from error

    def close(self, *, reset: bool = False) -> None:
        """Close; what the kernel has taken is still delivered, unless the connection is reset."""
        if self._raw.fileno() < 0:
            return
        if reset:
            self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        anyio.notify_closing(self._raw)
        self._raw.close()

    async def aclose(self) -> None:
        self.close()


def _bounded(pieces: list[memoryview]) -> list[memoryview]:
    """As much of the beginning of these pieces as one call may move."""
    bounded = []
    room = _CALL_MOST_BYTES
    for piece in pieces:
        bounded.append(piece[:room])
        room -= len(bounded[-1])
        if not room:
            break
    return bounded


class TlsStream:
    """The same over TLS, which anyio speaks."""

    def __init__(self, stream: TLSStream) -> None:
        self._stream = stream

    def fileno(self) -> int:
        return self._stream.extra(SocketAttribute.raw_socket).fileno()

    async def receive(self, most: int, seconds: float | None = None) -> bytes:
        try:
            with anyio.fail_after(seconds):
                return await self._stream.receive(most)
        except anyio.EndOfStream:
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError) as error:
            raise StreamBroke from error

    async def send(self, *pieces: bytes | memoryview, seconds: float | None = None) -> None:
        try:
            for piece in pieces:
                with anyio.fail_after(seconds):
                    await self._stream.send(bytes(piece))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError) as error:
            raise StreamBroke from error

    async def aclose(self) -> None:
        await anyio.aclose_forcefully(self._stream)


async def connect(host: str, port: int) -> PlainStream:
    """A connection to the first address of `host` that answers. Raises OSError."""
    connected = await anyio.connect_tcp(host, port)
    raw = socket.socket(fileno=connected.extra(SocketAttribute.raw_socket).dup().detach())
    await anyio.aclose_forcefully(connected)
    raw.setblocking(False)
    return PlainStream(raw)
