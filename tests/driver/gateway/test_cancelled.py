"""Cancelled calls over real sockets: they hold up no other call, and leave neither connection nor descriptor."""

import io
import os
import random

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from driver.gateway import wire
from driver.gateway.client import GatewayClient

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

RUN = wire.Run(id="run-1", kind="REVIEW", subject="review:1", epoch=1, attempt=0)
DIGEST = "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"
LEASE = b'{"now": "2026-11-29T10:00:00Z", "leasedUntil": "2026-11-29T10:01:00Z"}'
CANCELLED = 1000
AT_A_TIME = 100


async def answer(stream: SocketStream) -> None:
    """Answers renewals, and reads uploads without ever answering."""
    async with stream:
        try:
            while True:
                if b"/renew" in await stream.receive():
                    await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(LEASE), LEASE))
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return


async def test_cancelled_uploads() -> None:
    """A thousand uploads that are cut off at any moment delay no renewal, and all their sockets are closed."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", backlog=1024)
    port = listener.extra(SocketAttribute.local_port)
    rng = random.Random(1)
    body = bytes(1 << 18)
    async with listener, anyio.create_task_group() as server:
        server.start_soon(listener.serve, answer)
        async with GatewayClient(f"http://127.0.0.1:{port}", "token-0123", verify=False) as gateway:
            calls = gateway.for_run(RUN, lambda: None)
            await calls.renew(seconds=5)

            async def upload(seconds: float) -> None:
                with anyio.move_on_after(seconds):
                    await calls.result(io.BytesIO(body), len(body), DIGEST, 0, seconds=60)

            before = len(os.listdir("/proc/self/fd"))
            for _ in range(CANCELLED // AT_A_TIME):
                async with anyio.create_task_group() as tasks:
                    for _ in range(AT_A_TIME):
                        tasks.start_soon(upload, rng.uniform(0, 0.1))
                    await calls.renew(seconds=5)
            await anyio.wait_all_tasks_blocked()
            assert len(os.listdir("/proc/self/fd")) <= before + 1
        server.cancel_scope.cancel()
