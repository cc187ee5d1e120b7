"""How long the driver takes to its first pull, and what it costs while it waits for work.

The peer is a script that imports httpx and sends one request: what anybody would write. Both are started in
turn, so that a busy machine is busy for both; the figures are medians.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import psutil

ROUNDS: Final = 15
IDLE_SECONDS: Final = 20.0
_ROOT: Final = Path(__file__).parents[1]
PEER: Final = "import sys, httpx; httpx.Client(trust_env=False).post(sys.argv[1])"
TAKEN_BACK: Final = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
NO_WORK: Final = b"HTTP/1.1 204 No Content\r\n\r\n"


class Gateway:
    """Answers every request with one head, and remembers when the first byte of the first one came."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.first_byte = threading.Event()
        self.moment = 0.0
        self.requests = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer_all, args=(connection,), daemon=True).start()

    def _answer_all(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65_536):
                if not self.first_byte.is_set():
                    self.moment = time.perf_counter()
                    self.first_byte.set()
                if b"\r\n\r\n" in data:
                    self.requests += 1
                    connection.sendall(self._answer)

    def close(self) -> None:
        self._socket.close()


@contextmanager
def gateway(answer: bytes) -> Iterator[Gateway]:
    server = Gateway(answer)
    try:
        yield server
    finally:
        server.close()


def driver_environment(port: int, workspace: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "DRIVER_PYTHON": sys.executable,
        "HEPHAESTUS_GATEWAY_URL": f"http://127.0.0.1:{port}",
        "HEPHAESTUS_SANDBOX_TOKEN": "a-token-for-the-benchmark",
        "DRIVER_WORKSPACE": workspace,
        "DRIVER_ISOLATION": "off",
    }


def seconds_to_first_byte(command: list[str], server: Gateway, environment: dict[str, str]) -> float:
    """From the start of a process to the first byte that it sends."""
    started = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        if not server.first_byte.wait(30):
            raise RuntimeError(f"{command[0]} sent nothing within 30 s")
        return server.moment - started
    finally:
        process.wait()


def first_pull(workspace: str) -> tuple[float, float]:
    """Median seconds of the driver, by its entrypoint, and of the peer."""
    ours, peers = [], []
    for _ in range(ROUNDS):
        with gateway(TAKEN_BACK) as server:
            environment = driver_environment(server.port, workspace)
            ours.append(seconds_to_first_byte([str(_ROOT / "entrypoint.sh")], server, environment))
        with gateway(TAKEN_BACK) as server:
            command = [sys.executable, "-I", "-c", PEER, f"http://127.0.0.1:{server.port}/"]
            peers.append(seconds_to_first_byte(command, server, {"PATH": os.environ["PATH"]}))
    return statistics.median(ours), statistics.median(peers)


def idle(workspace: str) -> tuple[float, float, int]:
    """Resident MiB, share of a core, and pulls, of a driver that finds no work for a while."""
    with gateway(NO_WORK) as server:
        environment = driver_environment(server.port, workspace)
        process = subprocess.Popen(
            [str(_ROOT / "entrypoint.sh")], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        try:
            server.first_byte.wait(30)
            time.sleep(2.0)
            seen = psutil.Process(process.pid)
            before, pulls = seen.cpu_times(), server.requests
            time.sleep(IDLE_SECONDS)
            after = seen.cpu_times()
            used = after.user + after.system - before.user - before.system
            return seen.memory_info().rss / 2**20, used / IDLE_SECONDS, server.requests - pulls
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    with TemporaryDirectory(prefix="bench-") as workspace:
        ours, peer = first_pull(workspace)
        resident, share, pulls = idle(workspace)
    sys.stdout.write(f"first pull: {ours * 1000:.0f} ms, the peer's first request: {peer * 1000:.0f} ms\n")
    sys.stdout.write(f"idle: {resident:.1f} MiB, {share:.2%} of a core, {pulls} pulls in {IDLE_SECONDS:.0f} s\n")
    figures = {
        "first_pull_ratio": round(ours / peer, 3),
        "idle_rss_mib": round(resident, 1),
        "idle_cpu": round(share, 5),
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
