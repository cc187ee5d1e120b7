"""Sees clients close their side of a connection, without reading what they sent before."""

import select
from collections.abc import Callable

import anyio


class Departures:
    """One watch over all connections of a server.

    EPOLLRDHUP (epoll_ctl(2)) tells of a peer's end of stream whatever stands unread before it. Only a client that
    goes away behind more bytes than the socket's buffers hold is not seen before they are read.
    """

    def __init__(self) -> None:
        self._on_gone: dict[int, Callable[[], None]] = {}
        self._epoll = select.epoll()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await anyio.wait_readable(self._epoll)
            for descriptor, _ in self._epoll.poll(0):
                self._on_gone[descriptor]()

    def close(self) -> None:
        """Watch no more."""
        self._epoll.close()

    def watch(self, descriptor: int, on_gone: Callable[[], None]) -> None:
        """Call `on_gone` once when the peer of that socket has gone."""
        self._epoll.register(descriptor, select.EPOLLRDHUP | select.EPOLLONESHOT)
        self._on_gone[descriptor] = on_gone

    def forget(self, descriptor: int) -> None:
        """Watch that socket no more; to be called once, before it is closed."""
        del self._on_gone[descriptor]
        self._epoll.unregister(descriptor)
