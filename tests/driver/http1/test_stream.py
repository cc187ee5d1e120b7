"""Sockets as the door reads and writes them."""

import socket
import threading

import anyio
import pytest
from anyio.lowlevel import checkpoint

from driver.http1.stream import PlainStream, StreamBroke

pytestmark = pytest.mark.anyio

SIZE = 8 << 20


def pair() -> tuple[PlainStream, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return PlainStream(ours), theirs


async def test_a_stream_is_closed_twice_without_harm() -> None:
    """A stream that is closed already can be closed."""
    stream, other = pair()
    with other:
        stream.close()
        stream.close(reset=True)
        assert other.recv(1) == b""


async def test_what_never_blocks_still_gives_others_a_turn() -> None:
    """A peer that is always faster does not keep the loop: somebody else has a turn every few hundred KiB."""
    stream, other = pair()
    turns = 0

    def drain() -> None:
        while other.recv(1 << 20):
            pass

    async def counting() -> None:
        nonlocal turns
        while True:
            await checkpoint()
            turns += 1

    reader = threading.Thread(target=drain)
    reader.start()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(counting)
        await stream.send(b"x" * SIZE)
        tasks.cancel_scope.cancel()
    stream.close()
    reader.join()
    other.close()
    assert turns >= 16


async def test_pieces_arrive_in_order() -> None:
    """Several pieces are sent as one, also where the socket takes only a part of one at a time."""
    stream, other = pair()
    pieces = [b"", b"a", bytes(range(256)) * 4096, b"", b"z" * 70_000, b"end"]
    received = bytearray()

    async def reading() -> None:
        while len(received) < sum(map(len, pieces)):
            received.extend(await anyio.to_thread.run_sync(other.recv, 50_000))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reading)
        await stream.send(*pieces)
    stream.close()
    other.close()
    assert bytes(received) == b"".join(pieces)


async def test_a_wait_is_bounded() -> None:
    """Who waits longer than the given seconds for the other side gets a TimeoutError, in both directions."""
    stream, other = pair()
    with other:
        with pytest.raises(TimeoutError):
            await stream.receive(1, 0.01)
        with pytest.raises(TimeoutError):
            await stream.send(b"x" * SIZE, seconds=0.01)
        stream.close()


async def test_close_wakes_who_waits() -> None:
    """A stream that is closed while somebody waits for it breaks, and does not hang."""
    stream, other = pair()
    broke = False

    async def waiting() -> None:
        nonlocal broke
        with pytest.raises(StreamBroke):
            await stream.receive(1)
        broke = True

    with other:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiting)
            await anyio.wait_all_tasks_blocked()
            stream.close()
    assert broke
