"""A sandbox's network: one link to a node that routes and filters, with the gateway and the API Service behind it."""

import ctypes
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

import anyio
import pytest
from anyio.abc import ByteReceiveStream, ByteSendStream, SocketStream

from driver.stub.server import Stub
from tests.e2e.driving import ROOT

_CLONE_NEWNET = 0x40000000
_GATEWAY_PORT = 8080

SANDBOX = """
link set lo up
addr add 10.99.0.2/24 dev inside
addr add fd99::2/64 dev inside nodad
link set inside up
route add 10.96.0.0/16 via 10.99.0.1
route add fd96::/64 via fd99::1
"""
NODE = """
link set lo up
addr add 10.99.0.1/24 dev outside
addr add fd99::1/64 dev outside nodad
link set outside up
addr add 10.96.0.1/32 dev lo
addr add 10.96.0.50/32 dev lo
addr add fd96::1/128 dev lo
addr add fd96::50/128 dev lo
"""


@dataclass(frozen=True)
class Family:
    """Where things are in one family of addresses."""

    api: str
    gateway: str
    match: str

    @property
    def url(self) -> str:
        host = f"[{self.gateway}]" if ":" in self.gateway else self.gateway
        return f"http://{host}:{_GATEWAY_PORT}"


FAMILIES = {
    "IPv4": Family("10.96.0.1", "10.96.0.50", "ip daddr"),
    "IPv6": Family("fd96::1", "fd96::50", "ip6 daddr"),
}


@dataclass(frozen=True)
class Network:
    """Two network namespaces, by their names."""

    sandbox: str
    node: str

    def command(self) -> list[str]:
        """What starts the driver in the sandbox's network; `ip` replaces itself by it."""
        return ["ip", "netns", "exec", self.sandbox, str(ROOT / "entrypoint.sh")]

    def filter(self, *rules: str) -> None:
        """Have the node apply these rules, and no others, to what comes in."""
        lines = ["flush ruleset", "table inet gate {", "chain input {"]
        lines += ["type filter hook input priority 0; policy accept;", *rules, "}", "}", ""]
        run("ip", "netns", "exec", self.node, "nft", "-f", "-", text="\n".join(lines))

    def black_hole(self, family: Family, *rules: str) -> None:
        """Besides these rules, swallow each packet to and from the gateway, of connections that stand as well."""
        self.filter(*rules, f"{family.match} {family.gateway} tcp dport {_GATEWAY_PORT} drop")
        out = f"{family.match.replace('daddr', 'saddr')} {family.gateway} tcp sport {_GATEWAY_PORT} drop"
        lines = [
            "table inet hole {",
            "chain output {",
            "type filter hook output priority 0; policy accept;",
            out,
            "}",
            "}",
        ]
        run("ip", "netns", "exec", self.node, "nft", "-f", "-", text="\n".join([*lines, ""]))

    def listen(self, host: str, port: int) -> socket.socket:
        """A socket that listens in the node's network."""
        sockets: list[socket.socket] = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def inside() -> None:  # a thread has a network namespace of its own
            with open(f"/run/netns/{self.node}", "rb") as namespace:
                assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) == 0
            sockets.append(socket.create_server((host, port), family=family, backlog=1024))

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        return sockets[0]


def run(*command: str, text: str | None = None) -> None:
    subprocess.run(command, input=text, text=True, check=True, capture_output=True, timeout=20)


@contextmanager
def network() -> Iterator[Network]:
    """The two namespaces; skips where none can be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nft") is None:
        pytest.skip("network namespaces need root, iproute2 and nftables")
    made = Network(f"gate-sandbox-{os.getpid()}", f"gate-node-{os.getpid()}")
    with ExitStack() as stack:
        for name in (made.sandbox, made.node):
            try:
                run("ip", "netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
            stack.callback(run, "ip", "netns", "delete", name)
        link = ["link", "add", "inside", "type", "veth", "peer", "name", "outside", "netns", made.node]
        run("ip", "-n", made.sandbox, *link)
        run("ip", "-n", made.node, "-batch", "-", text=NODE)
        run("ip", "-n", made.sandbox, "-batch", "-", text=SANDBOX)
        yield made


@asynccontextmanager
async def gateway(made: Network, family: Family, stub: Stub) -> AsyncIterator[None]:
    """Whoever connects to the gateway's address in the node's network is connected to the stub."""
    port = int(stub.url.rpartition(":")[2])

    async def serve(accepted: socket.socket) -> None:
        stream = await SocketStream.from_socket(accepted)
        async with stream, await anyio.connect_tcp("127.0.0.1", port) as behind, anyio.create_task_group() as both:
            both.start_soon(_pass_on, stream, behind)
            await _pass_on(behind, stream)
            both.cancel_scope.cancel("one side is done")

    with made.listen(family.gateway, _GATEWAY_PORT) as listening:
        listening.setblocking(False)
        async with anyio.create_task_group() as tasks:

            async def accept() -> None:
                while True:
                    await anyio.wait_readable(listening)
                    tasks.start_soon(serve, listening.accept()[0])

            tasks.start_soon(accept)
            yield
            tasks.cancel_scope.cancel("the test is over")


async def _pass_on(source: ByteReceiveStream, sink: ByteSendStream) -> None:
    try:
        async for data in source:
            await sink.send(data)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return  # a driver that was stopped


@contextmanager
def api_server(made: Network, family: Family) -> Iterator[None]:
    """The API server answers, unless a filter keeps it from that."""
    with made.listen(family.api, 443):
        yield
