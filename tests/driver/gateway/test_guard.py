"""A claim that falls into doubt while the connection is made sends nothing, not even what writes nothing."""

import io
from collections.abc import Awaitable, Callable

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from driver.errors import ClaimInDoubt
from driver.gateway.client import GatewayClient, RunCalls
from driver.gateway.wire import End, Run

pytestmark = pytest.mark.anyio

RUN = Run(id="run-1", kind="REVIEW", subject="review:1", epoch=3, attempt=0)
DIGEST = "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"


async def workspace(calls: RunCalls) -> None:
    async with calls.workspace(0, None):
        raise AssertionError("it was sent")


CALLS: dict[str, Callable[[RunCalls], Awaitable[object]]] = {
    "context": lambda calls: calls.context(),
    "runtime": lambda calls: calls.runtime(),
    "workspace": workspace,
    "result": lambda calls: calls.result(io.BytesIO(b"body"), 4, DIGEST, 0, seconds=5),
    "end": lambda calls: calls.end(End(outcome="COMPLETED", exit=0)),
}


@pytest.mark.parametrize("call", CALLS)
async def test_guarded_when_the_connection_is_there(call: str) -> None:
    """The guard is asked before a connection is looked for, and once more before the call leaves on it."""
    received: list[bytes] = []
    connected, closed = anyio.Event(), anyio.Event()

    async def serve(stream: SocketStream) -> None:
        async with stream:
            connected.set()
            try:
                received.append(await stream.receive())
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                received.append(b"")
            closed.set()

    def guard() -> None:
        if connected.is_set() or guarded:
            raise ClaimInDoubt
        guarded.append(call)

    guarded: list[str] = []
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        async with GatewayClient(url, "the-token", verify=False) as gateway:
            with pytest.raises(ClaimInDoubt), anyio.fail_after(10):
                await CALLS[call](gateway.for_run(RUN, guard))
        with anyio.fail_after(10):
            await closed.wait()
        tasks.cancel_scope.cancel()
    assert guarded == [call]
    assert received == [b""]
