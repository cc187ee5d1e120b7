"""The model door of one run: a loopback server that lives as long as the run."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
from anyio.abc import SocketAttribute

from driver import http1
from driver.clock import Clock
from driver.door.permits import Budgets
from driver.door.proxy import Proxy
from driver.door.tally import Tally
from driver.door.upstream import Upstream
from driver.log import Log

_KEY_BYTES = 32


@dataclass(frozen=True)
class Door:
    """An open door. `url` has no path: clients of the OpenAI wires take `url` + `/v1` as their base."""

    url: str
    key: str
    tally: Tally

    def __repr__(self) -> str:
        return f"Door(url={self.url!r}, key='***')"

    def statistics(self) -> dict[str, Any]:
        """What the run did with the model so far, as `out/driver.json` tells it."""
        return self.tally.statistics()


@asynccontextmanager
async def open_door(
    upstream: Upstream,
    *,
    model: str,
    budgets: Budgets,
    log: Log,
    clock: Clock,
    on_claim_refused: Callable[[int], None],
    patience: http1.Patience | None = None,
) -> AsyncIterator[Door]:
    """A door for the programs of one run; it closes `upstream` too.

    `model` is the only one that requests may name. `on_claim_refused` is called, perhaps more than once, with the
    status (401, 409 or 410) when the gateway refuses the claim; calls are answered 409 from then on. When the
    block is left, every exchange has been cancelled and has settled. The key is masked in `log` meanwhile.
    `patience` is for programs that are slow to send.
    """
    key = secrets.token_urlsafe(_KEY_BYTES)
    tally = Tally()
    failure: Exception | None = None
    async with upstream, await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener:
        log.secrets.add(key)
        proxy = Proxy(
            upstream,
            key=key,
            model=model,
            budgets=budgets,
            tally=tally,
            log=log,
            clock=clock,
            on_claim_refused=on_claim_refused,
        )
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(http1.serve, listener, proxy.handle, patience=patience))
                port = listener.extra(SocketAttribute.local_port)
                try:
                    yield Door(f"http://127.0.0.1:{port}", key, tally)
                except Exception as error:
                    # Raised again below: the task group would wrap what is the caller's own.
                    failure = error
                tasks.cancel_scope.cancel()
        finally:
            log.secrets.discard(key)
    if failure is not None:
        raise failure
