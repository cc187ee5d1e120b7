"""The LiteLLM proxy as a peer; installed by `make bench-litellm` into a virtual environment of its own.

Its pass-through is what is measured: it does what the door does, and is several times as fast as its `/v1/responses`.
"""

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

_COMMAND: Final = Path(".venv-litellm/bin/litellm")
_START_SECONDS: Final = 120.0
_CONFIG: Final = """\
general_settings:
  master_key: sk-bench
litellm_settings:
  telemetry: false
"""


@contextmanager
def litellm_proxy(address: str) -> Iterator[str | None]:
    """The base of a running proxy's pass-through to `address`, or None where LiteLLM is not installed."""
    if not _COMMAND.exists():
        yield None
        return
    with socket.socket() as free, TemporaryDirectory() as directory:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        config = Path(directory) / "config.yaml"
        config.write_text(_CONFIG)
        process = subprocess.Popen(
            [_COMMAND.absolute(), "--config", config, "--host", "127.0.0.1", "--port", str(port)],
            cwd=directory,
            env=os.environ | {"OPENAI_API_BASE": address, "OPENAI_API_KEY": "none"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_ready(f"http://127.0.0.1:{port}")
            yield f"http://127.0.0.1:{port}/openai_passthrough"
        finally:
            process.terminate()
            process.wait()


def _wait_ready(url: str) -> None:
    last = time.monotonic() + _START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health/liveliness", timeout=2):
                return
        except OSError:
            if time.monotonic() > last:
                raise
            time.sleep(0.5)
