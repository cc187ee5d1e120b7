"""One process of a CLI, with everything that it started."""

import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from anyio.abc import Process

GRACE_SECONDS: Final = 3.0
"""What a CLI is given between SIGTERM and SIGKILL."""

_KILL_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Start:
    """What is started, where, and with which variables."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: Path


@asynccontextmanager
async def running(start: Start, *, brief: Path) -> AsyncIterator[Process]:
    """A CLI with its brief as input, in a process group of its own; stopped when the block is left.

    What leaves the group is the driver's to find. Raises OSError when it cannot be started.
    """
    source = await anyio.to_thread.run_sync(lambda: brief.open("rb"))
    with source:
        process = await anyio.open_process(
            start.command, stdin=source, cwd=start.cwd, env=start.environment, start_new_session=True
        )
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            await _stop(process)


async def _stop(process: Process) -> None:
    if process.returncode is None:
        _signal(process.pid, signal.SIGTERM)
        with anyio.move_on_after(GRACE_SECONDS):
            await process.wait()
    # Also after its own end: what it left behind in its group goes with it.
    _signal(process.pid, signal.SIGKILL)
    with anyio.move_on_after(_KILL_SECONDS):
        await process.aclose()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)
