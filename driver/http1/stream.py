"""A client's socket, which is read only when somebody asks for bytes.

anyio's own stream goes on reading an accepted connection between two calls of `receive`, without a bound: the
bodies of calls that wait for a permit would all come to lie in memory.
"""

import socket
import struct

import anyio
from anyio.lowlevel import checkpoint

from driver.errors import DriverError


class ClientGone(DriverError):
    """The client closed the connection before the exchange was over."""


class ClientStream:
    """A connected, non-blocking socket. One task may receive and one may send at a time."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        self.descriptor = raw.fileno()

    async def receive(self, most: int) -> bytes:
        """Up to `most` bytes, or `b""` at the end. Raises ClientGone."""
        await checkpoint()
        while True:
            try:
                return self._raw.recv(most)
            except BlockingIOError:
                await self._readable()
            except OSError as error:
                raise ClientGone from error

    async def send(self, data: bytes) -> None:
        """Return when the kernel has taken all of it. Raises ClientGone."""
        await checkpoint()
        left = memoryview(data)
        while left:
            try:
                left = left[self._raw.send(left) :]
            except BlockingIOError:
                await self._writable()
            except OSError as error:
                raise ClientGone from error

    async def _readable(self) -> None:
        try:
            await anyio.wait_readable(self._raw)
        except anyio.ClosedResourceError as error:
            raise ClientGone from error

    async def _writable(self) -> None:
        try:
            await anyio.wait_writable(self._raw)
        except anyio.ClosedResourceError as error:
            raise ClientGone from error

    def send_eof(self) -> None:
        """Tell the client that nothing more comes. Raises ClientGone."""
        try:
            self._raw.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise ClientGone from error

    def close(self, *, reset: bool = False) -> None:
        """Close; what the kernel has taken is still delivered, unless the connection is reset."""
        if reset:
            self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        anyio.notify_closing(self._raw)
        self._raw.close()
