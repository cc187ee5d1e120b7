"""The driver as a process of its own on a stub, as a person at a terminal starts and stops it.

It runs as in a Pod; a port on which nobody listens stands in for the Kubernetes API that a network policy
would close.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import Process

from driver.exits import from_wait_status
from driver.stub.server import Stub

STOP_SECONDS: Final = 40.0
"""More than the grace that a driver has by default."""

_ROOT: Final = Path(__file__).parents[2]


class Interrupt:
    """Whether somebody asked to stop: with Ctrl-C, or as `kill` does."""

    def __init__(self) -> None:
        self.asked = 0
        self._changed = anyio.Event()

    def ask(self) -> None:
        self.asked += 1
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def wait(self, times: int) -> None:
        """Return once it was asked so often."""
        while self.asked < times:
            await self._changed.wait()


@asynccontextmanager
async def interruptible() -> AsyncIterator[Interrupt]:
    """SIGINT and SIGTERM ask to stop while the block runs, and do nothing else."""
    interrupt = Interrupt()
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as tasks:

            async def listen() -> None:
                async for _ in signals:
                    interrupt.ask()

            tasks.start_soon(listen)
            yield interrupt
            tasks.cancel_scope.cancel("the block is over")


async def drive(stub: Stub, workspace: Path, interrupt: Interrupt) -> str | None:
    """Run the driver until every run has ended, then stop it as a cluster would.

    None when it went so or was interrupted; else what went wrong with the driver itself.
    """
    with _closed_port() as closed:
        process = await anyio.open_process(
            _command(),
            env=_environment(stub, workspace, closed),
            stdin=subprocess.DEVNULL,
            stdout=None,
            stderr=None,
            # Ctrl-C at a terminal goes to a whole process group. The driver is told once, and by us.
            start_new_session=True,
        )
        async with process, anyio.create_task_group() as tasks:
            tasks.start_soon(_stop_when_ended, stub, process)
            tasks.start_soon(_stop_when_asked, interrupt, process)
            code = from_wait_status(await process.wait())
            tasks.cancel_scope.cancel("the driver has ended")
    if code != 0:
        return f"the driver ended by itself, with exit code {code}; its last lines tell why"
    if not interrupt.asked and not all(run.outcome for run in stub.state.runs):
        return "the driver ended before the run did"
    return None


def _command() -> list[str]:
    entrypoint = _ROOT / "entrypoint.sh"
    return [str(entrypoint)] if entrypoint.exists() else [sys.executable, "-I", "-m", "driver"]


def _environment(stub: Stub, workspace: Path, closed_port: int) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "DRIVER_PYTHON": sys.executable,
        "HEPHAESTUS_GATEWAY_URL": stub.url,
        "HEPHAESTUS_SANDBOX_TOKEN": stub.token,
        "DRIVER_WORKSPACE": str(workspace),
        "DRIVER_ISOLATION_TARGET": f"127.0.0.1:{closed_port}",
        "DRIVER_LOG": "console",
    }


async def _stop_when_ended(stub: Stub, process: Process) -> None:
    await stub.wait_ended()
    await _stop(process)


async def _stop_when_asked(interrupt: Interrupt, process: Process) -> None:
    await interrupt.wait(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop, process)
        await interrupt.wait(2)
        _signal(process, signal.SIGTERM)  # the second one skips the grace


async def _stop(process: Process) -> None:
    _signal(process, signal.SIGTERM)
    await anyio.sleep(STOP_SECONDS)
    _signal(process, signal.SIGKILL)


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        process.send_signal(number)


@contextmanager
def _closed_port() -> Iterator[int]:
    """A port that is taken and on which nobody listens: a connection to it is refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]
