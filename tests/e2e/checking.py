"""`agent-sandbox-driver check` as a process, and a gateway that says what the test wants."""

import base64
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import anyio

from tests.e2e.driving import ROOT

TOKEN = "a-token-that-nobody-may-see"


@dataclass(frozen=True)
class Checked:
    """What one check wrote, and its exit code."""

    code: int
    text: str

    @property
    def findings(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = json.loads(self.text)["findings"]
        return found

    def line(self, area: str, name: str) -> dict[str, str]:
        """The only finding of that area and name."""
        (found,) = [line for line in self.findings if (line["area"], line["name"]) == (area, name)]
        return found

    def failed(self) -> list[tuple[str, str]]:
        """Area and name of each failure."""
        return [(line["area"], line["name"]) for line in self.findings if line["level"] == "fail"]


async def check(settings: Mapping[str, str | None], *arguments: str, prefix: Sequence[str] = ()) -> Checked:
    """Run it with these settings and nothing else in its environment; those that are None are left out.

    Without arguments it writes JSON. `prefix` is a command that starts it.
    """
    variables = {"PATH": os.environ["PATH"], "DRIVER_PYTHON": sys.executable, "HEPHAESTUS_SANDBOX_TOKEN": TOKEN}
    given = {name: value for name, value in {**variables, **settings}.items() if value is not None}
    line = [*prefix, str(ROOT / "entrypoint.sh"), "check", *(arguments or ("--json",))]
    with anyio.fail_after(50):
        ended = await anyio.run_process(line, env=given, stdin=subprocess.DEVNULL, check=False)
    assert b"Traceback" not in ended.stderr, ended.stderr
    text = ended.stdout.decode()
    assert given.get("HEPHAESTUS_SANDBOX_TOKEN", TOKEN) not in text
    return Checked(ended.returncode, text)


def jwt(**claims: Any) -> str:
    """A token with these claims, and a signature that is none."""
    parts = [json.dumps({"alg": "none"}), json.dumps(claims), "signature"]
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)


@contextmanager
def gateway(status: int = 401, *, behind: float = 0.0, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address of a gateway that answers this to everything, with a clock so many seconds behind."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["authorization"] is None
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(time.time() - behind, usegmt=True)

        def log_message(self, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
