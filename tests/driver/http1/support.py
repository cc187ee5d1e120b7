"""A server of our own on loopback, and clients that send exact bytes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import SocketAttribute, SocketStream

from driver.http1 import Exchange, Handler, serve


@asynccontextmanager
async def running(handler: Handler, **settings: Any) -> AsyncIterator[int]:
    """A server on loopback; gives its port."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: serve(listener, handler, **settings))
            yield listener.extra(SocketAttribute.local_port)
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def connected(handler: Handler, **settings: Any) -> AsyncIterator[SocketStream]:
    """A raw connection to a server of its own."""
    async with running(handler, **settings) as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        yield stream


async def receive_until(stream: SocketStream, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        data += await stream.receive()
    return data


async def receive_all(stream: SocketStream) -> bytes:
    data = b""
    while True:
        try:
            data += await stream.receive()
        except anyio.EndOfStream:
            return data


async def echo(exchange: Exchange) -> None:
    body = await exchange.read(1 << 20)
    assert body is not None
    await exchange.respond(200, [("x-method", exchange.request.method)], body)
