"""The stub as a process of its own, with its state in a file: one that can be killed and started again."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

_LINE_BYTES = 64 * 1024
_START_SECONDS = 30.0


@dataclass
class GatewayProcess:
    """A gateway at one address, whichever process serves it at the moment."""

    directory: Path
    url: str = ""
    token: str = ""
    _process: Process | None = None

    async def start(self) -> None:
        """Return once it serves; it goes on from the state of the one before it, at the same address."""
        command = [sys.executable, "-m", "driver.stub"]
        command += ["--scenario", str(self.directory / "scenario.toml"), "--state", str(self.directory / "state")]
        command += ["--port", self.url.rpartition(":")[2] or "0"]
        self._process = await anyio.open_process(command, stdin=subprocess.DEVNULL, stderr=None)
        assert self._process.stdout is not None
        with anyio.fail_after(_START_SECONDS):
            line = await BufferedByteReceiveStream(self._process.stdout).receive_until(b"\n", _LINE_BYTES)
        ready = json.loads(line)
        assert self.token in ("", ready["token"])
        self.url, self.token = ready["url"], ready["token"]

    async def kill(self) -> None:
        """SIGKILL; return once it is gone."""
        assert self._process is not None
        self._process.kill()
        with anyio.CancelScope(shield=True):
            await self._process.aclose()
        self._process = None

    async def state(self) -> dict[str, Any]:
        """What it shows of its state."""
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.get(f"{self.url}/stub/state")
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    async def result(self, run: str) -> bytes:
        """The archive that was uploaded for a run."""
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.get(f"{self.url}/stub/results/{run}")
        return answer.raise_for_status().content


@asynccontextmanager
async def gateway_process(directory: Path, scenario: str) -> AsyncIterator[GatewayProcess]:
    """A gateway that plays a scenario (TOML); it is killed when the block is left."""
    directory.mkdir()
    (directory / "scenario.toml").write_text(scenario, "utf-8")
    gateway = GatewayProcess(directory)
    try:
        await gateway.start()
        yield gateway
    finally:
        if gateway._process is not None:
            await gateway.kill()
