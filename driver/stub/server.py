"""A running stub on a loopback port."""

import hashlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import SocketAttribute

from driver import http1
from driver.stub.app import App
from driver.stub.errors import StateError
from driver.stub.provider import Provider, ProviderSettings
from driver.stub.scenario import Scenario
from driver.stub.state import GatewayState
from driver.stub.state_file import StateFile
from driver.stub.workspaces import Prepared, prepare_workspace

_KEY_BYTES: Final = 32
_REAP_SECONDS: Final = 0.25


@dataclass(frozen=True)
class Stub:
    """A stub that serves. `url` and `token` are what a driver needs to reach it."""

    url: str
    token: str
    state: GatewayState

    async def wait_for(self, predicate: Callable[[], bool]) -> None:
        """Return once `predicate()` is true; it is asked after each thing that happens in the stub."""
        await self.state.journal.wait_for(predicate)

    async def wait_for_event(self, event: str, **fields: object) -> None:
        """Return once the journal holds an entry of that name with these fields."""
        await self.wait_for(lambda: bool(self.state.journal.named(event, **fields)))

    async def wait_ended(self) -> None:
        """Return once every run has ended."""
        await self.wait_for(lambda: all(run.outcome for run in self.state.runs))


def gateway_clock() -> datetime:
    """The gateway's own clock."""
    return datetime.now(UTC)


@asynccontextmanager
async def running_stub(
    scenario: Scenario | None = None,
    *,
    port: int = 0,
    now: Callable[[], datetime] = gateway_clock,
    provider: ProviderSettings | None = None,
    results: Path | None = None,
    state_file: Path | None = None,
    reap_seconds: float = _REAP_SECONDS,
    patience: http1.Patience | None = None,
) -> AsyncIterator[Stub]:
    """A stub on 127.0.0.1, ready when the block begins and gone when it ends.

    `results` is a directory for what is uploaded. With a `state_file` it goes on where the stub before it was when that
    ended, however it did. Raises StubError when the workspace cannot be made or the state file cannot be used, OSError
    when the port is taken.
    """
    scenario = scenario or Scenario()
    async with AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stub-")))
        prepared = await anyio.to_thread.run_sync(prepare_workspace, scenario.workspace, scratch)
        file = None
        if state_file is not None:
            opened = await anyio.to_thread.run_sync(StateFile, state_file, _identity(scenario, prepared))
            file = stack.enter_context(opened)
        before = file.before if file else None
        state = GatewayState(scenario, prepared, now=now, key=secrets.token_bytes(_KEY_BYTES), before=before)
        keep = partial(file.keep, state) if file else anyio.lowlevel.checkpoint_if_cancelled
        await keep()
        client = await stack.enter_async_context(Provider(provider)) if provider else None
        app = App(state, provider=client, results=results, keep=keep)
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
        stack.push_async_callback(listener.aclose)
        bound = listener.extra(SocketAttribute.local_port)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(partial(http1.serve, listener.listeners[0], app.handle, patience=patience))
        tasks.start_soon(_reap, state, reap_seconds, keep)
        yield Stub(f"http://127.0.0.1:{bound}", state.sandboxes.token(state.sandbox), state)
        tasks.cancel_scope.cancel("the stub is closed")


def _identity(scenario: Scenario, prepared: Prepared) -> str:
    """Names what is played: the scenario with all it states, and the workspace that its runs download."""
    return hashlib.sha256(f"{scenario.model_dump_json()} {prepared.archive.digest}".encode()).hexdigest()


async def _reap(state: GatewayState, seconds: float, keep: Callable[[], Awaitable[None]]) -> None:
    while True:  # the gateway's clock may be anyone's, so its moments are looked for
        await anyio.sleep(seconds)
        state.runs.reap()
        try:
            await keep()
        except StateError as error:
            # Each call is answered 500 meanwhile, and the next moment tries again.
            state.journal.record("state.not_kept", error=str(error))
