"""The real driver as a process, started by the real entrypoint, against a stub in this process."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from driver.stub.scenario import Scenario, parse_scenario
from driver.stub.server import Stub

ROOT = Path(__file__).parents[2]
_LINE_BYTES = 1024 * 1024
_EXIT_SECONDS = 40.0

# Or what tells it, once the whole environment is known.
Command = Sequence[str] | Callable[[Mapping[str, str]], Sequence[str]]


@dataclass
class Driver:
    """A running driver and what it has logged so far."""

    process: Process
    events: list[dict[str, Any]] = field(default_factory=list)
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def named(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """The logged lines of that event that have these fields."""
        return [line for line in self.events if line["event"] == event and fields.items() <= line.items()]

    def names(self, *left_out: str) -> list[str]:
        """The events in order, without those that are left out."""
        return [line["event"] for line in self.events if line["event"] not in left_out]

    async def wait_event(self, event: str, **fields: Any) -> dict[str, Any]:
        """The first line of that event with these fields, once it is there."""
        while not (found := self.named(event, **fields)):
            await self.changed()
        return found[0]

    async def changed(self) -> None:
        """Return once another line was logged."""
        await self._changed.wait()

    async def exit(self) -> int:
        """The exit code, once the driver has ended and its log is read."""
        with anyio.fail_after(_EXIT_SECONDS):
            return await self.process.wait()

    async def read(self) -> None:
        assert self.process.stdout is not None
        lines = BufferedByteReceiveStream(self.process.stdout)
        while True:
            try:
                line = await lines.receive_until(b"\n", _LINE_BYTES)
            except (anyio.EndOfStream, anyio.IncompleteRead):
                return
            self.events.append(json.loads(line))
            changed, self._changed = self._changed, anyio.Event()
            changed.set()


class Gateway(Protocol):
    """What a driver has to know of a gateway: of a Stub, or of a GatewayProcess."""

    @property
    def url(self) -> str: ...

    @property
    def token(self) -> str: ...


@asynccontextmanager
async def driving(
    stub: Gateway, workspace: Path, *, command: Command = (str(ROOT / "entrypoint.sh"),), **environment: str
) -> AsyncIterator[Driver]:
    """A driver on this stub; it is killed when the block is left, unless it has ended before.

    `command` starts it, with nothing in its environment but its settings.
    """
    with closed_port() as closed:
        variables = {
            "PATH": os.environ["PATH"],
            "DRIVER_PYTHON": sys.executable,
            "HEPHAESTUS_GATEWAY_URL": stub.url,
            "HEPHAESTUS_SANDBOX_TOKEN": stub.token,
            "DRIVER_WORKSPACE": str(workspace),
            "DRIVER_ISOLATION_TARGET": f"127.0.0.1:{closed}",
            "DRIVER_POLL_MIN": "0.05",
            "DRIVER_POLL_MAX": "0.2",
            **environment,
        }
        line = command(variables) if callable(command) else command
        process = await anyio.open_process(line, env=variables, stdin=subprocess.DEVNULL, stderr=None)
        driver = Driver(process)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.read)
            try:
                yield driver
            finally:
                if process.returncode is None:
                    process.kill()
                with anyio.CancelScope(shield=True):
                    await process.wait()
            # Reading ends at the end of the log; the exit came first, so nothing is missed.


@contextmanager
def closed_port() -> Iterator[int]:
    """A port to which every connection is refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextmanager
def open_port() -> Iterator[int]:
    """A port to which every connection opens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1024)
        yield listening.getsockname()[1]


def scenario(**tables: Any) -> Scenario:
    """A scenario of one review of the example repository, with what the test changes."""
    return parse_scenario({"run": {"attempts": 1}, **tables})


def shell(script: str) -> str:
    """A DRIVER_PROGRAM_... setting that runs a shell script."""
    return shlex.join(["sh", "-c", script])


# Leaves part of a result, says so, and then works on until it is stopped.
UNFINISHED = "printf %s '{\"partial\":true}' > out/result.json; echo ready; sleep 600 & wait"


def files_of(stub: Stub, run: str = "run-1") -> dict[str, bytes]:
    """The files of the uploaded archive of a run."""
    import io
    import tarfile

    result = stub.state.results.newest(run)
    assert result is not None
    with tarfile.open(fileobj=io.BytesIO(result.body)) as archive:
        return {
            member.name: reader.read()
            for member in archive.getmembers()
            if member.isfile() and (reader := archive.extractfile(member)) is not None
        }


def requests_after(stub: Stub, number: int, wanted: Callable[[str], bool]) -> list[str]:
    """The paths of requests that came after a journal entry."""
    return [
        str(entry.fields["path"])
        for entry in stub.state.journal.entries
        if entry.number > number and entry.event == "request.received" and wanted(str(entry.fields["path"]))
    ]


def processes_below(workspace: Path) -> list[int]:
    """Processes that work in the workspace."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                cwd = os.readlink(entry / "cwd")
            except OSError:
                continue
            if Path(cwd).is_relative_to(workspace):
                found.append(int(entry.name))
    return found


@asynccontextmanager
async def gone(workspace: Path) -> AsyncIterator[None]:
    """After the block no process of the workspace lives, at once or soon."""
    try:
        yield
        with anyio.fail_after(20):
            while processes_below(workspace):  # noqa: ASYNC110 # the kernel tells nobody
                await anyio.sleep(0.02)
    finally:
        for pid in processes_below(workspace):
            os.kill(pid, signal.SIGKILL)


def stop_signal(driver: Driver, number: signal.Signals = signal.SIGTERM) -> None:
    driver.process.send_signal(number)


def subsequence(wanted: Sequence[str], events: Sequence[str]) -> list[str]:
    """The part of `wanted` that was found in this order; equal to `wanted` when all of it was."""
    remaining = iter(events)
    return [name for name in wanted if name in remaining]
