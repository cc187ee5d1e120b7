"""One probe: its table, and what real sockets and real routers make of it."""

import errno
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import anyio
import pytest

from driver.probe import Probe, Verdict, classify, probe
from driver.values import Target

pytestmark = pytest.mark.anyio

LOOPBACK = "127.0.0.1"


@contextmanager
def bound(host: str = LOOPBACK, *, backlog: int | None = None) -> Iterator[tuple[socket.socket, Target]]:
    """A socket on a port of its own; it refuses connections unless it listens."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        server.bind((host, 0))
        if backlog is not None:
            server.listen(backlog)
        yield server, Target(host, server.getsockname()[1])


@contextmanager
def silent() -> Iterator[tuple[socket.socket, Target]]:
    """A listener whose queue is full: the kernel drops what else comes, as a packet filter would."""
    with bound(backlog=0) as (server, target), socket.create_connection((target.host, target.port)):
        yield server, target


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, Probe(Verdict.CLOSED, "timed_out")),
        (0, Probe(Verdict.OPEN, "opened")),
        (errno.ECONNRESET, Probe(Verdict.OPEN, "opened_then_reset")),
        (errno.EPIPE, Probe(Verdict.OPEN, "opened_then_reset")),
        (errno.ECONNREFUSED, Probe(Verdict.CLOSED, "refused")),
        (errno.ETIMEDOUT, Probe(Verdict.CLOSED, "timed_out")),
        (errno.EHOSTUNREACH, Probe(Verdict.CLOSED, "host_unreachable")),
        (errno.EHOSTDOWN, Probe(Verdict.CLOSED, "host_unreachable")),
        (errno.ENONET, Probe(Verdict.CLOSED, "host_unreachable")),
        (errno.ENETUNREACH, Probe(Verdict.CLOSED, "net_unreachable")),
        (errno.ENOPROTOOPT, Probe(Verdict.CLOSED, "protocol_unreachable")),
        (errno.EACCES, Probe(Verdict.CLOSED, "prohibited")),
        (errno.EPERM, Probe(Verdict.CLOSED, "not_permitted")),
        (errno.EMFILE, Probe(Verdict.LOCAL_FAULT, "EMFILE")),
        (errno.ENFILE, Probe(Verdict.LOCAL_FAULT, "ENFILE")),
        (errno.ENOBUFS, Probe(Verdict.LOCAL_FAULT, "ENOBUFS")),
        (errno.EADDRNOTAVAIL, Probe(Verdict.LOCAL_FAULT, "EADDRNOTAVAIL")),
        (errno.ENETDOWN, Probe(Verdict.LOCAL_FAULT, "ENETDOWN")),
        (errno.EINVAL, Probe(Verdict.LOCAL_FAULT, "EINVAL")),
        (9999, Probe(Verdict.LOCAL_FAULT, "errno 9999")),
    ],
)
def test_table(result: int | None, expected: Probe) -> None:
    """Each end of a connect has its verdict and its word."""
    assert classify(result) == expected


def test_nothing_else_is_a_proof() -> None:
    """Of all errnos that there are, only the nine that the network or its policy answers with count as closed."""
    closed = {name for number, name in errno.errorcode.items() if classify(number).verdict is Verdict.CLOSED}
    assert closed == {
        "ECONNREFUSED", "ETIMEDOUT", "EHOSTUNREACH", "EHOSTDOWN", "ENONET", "ENETUNREACH", "ENOPROTOOPT", "EACCES",
        "EPERM",
    }  # fmt: skip


@pytest.mark.parametrize("host", [LOOPBACK, "::1"])
async def test_open_and_closed_at_once(host: str) -> None:
    """A target that accepts is OPEN, gets no byte, and sees the end of the connection at once."""
    with bound(host, backlog=1) as (server, target):
        assert await probe(target, 5.0) == Probe(Verdict.OPEN, "opened")
        connection, _ = server.accept()
        with connection:
            connection.settimeout(5.0)
            assert connection.recv(1) == b""


@pytest.mark.parametrize("host", [LOOPBACK, "::1"])
async def test_refused(host: str) -> None:
    """A port that nobody listens on is CLOSED."""
    with bound(host) as (_, target):
        assert await probe(target, 5.0) == Probe(Verdict.CLOSED, "refused")


async def test_no_answer() -> None:
    """A target that does not answer is CLOSED when the time to open is up, and no earlier."""
    with silent() as (_, target):
        started = anyio.current_time()
        assert await probe(target, 0.1) == Probe(Verdict.CLOSED, "timed_out")
        assert 0.1 <= anyio.current_time() - started < 2.0


async def test_opened_while_the_loop_stood_still() -> None:
    """A connection that opened behind the back of a late event loop is OPEN, though its time was up."""
    results: list[Probe] = []
    with silent() as (server, target):

        async def run_probe() -> None:
            results.append(await probe(target, 0.3))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_probe)
            await anyio.wait_all_tasks_blocked()
            # Makes room in the queue, then blocks until the kernel's second SYN (after 1 s) was accepted.
            server.settimeout(20)
            for _ in range(2):
                server.accept()[0].close()
    assert results == [Probe(Verdict.OPEN, "opened")]


async def test_no_descriptor_left() -> None:
    """Without a free file descriptor nothing was asked of the network: LOCAL_FAULT."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with bound() as (_, target):
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            result = await probe(target, 5.0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert result == Probe(Verdict.LOCAL_FAULT, "EMFILE")


async def test_scope_without_interface() -> None:
    """An address that cannot be used here proves nothing and raises nothing."""
    assert (await probe(Target("fe80::1%nosuch0", 443), 5.0)).verdict is Verdict.LOCAL_FAULT


async def test_leaves_no_descriptor() -> None:
    """Opened, refused, timed out or cancelled: a probe leaves no socket behind."""
    with silent() as (_, quiet), bound(backlog=8) as (_, accepting), bound() as (_, refusing):
        before = open_descriptors()
        for target in (quiet, accepting, refusing):
            await probe(target, 0.01)
        with anyio.move_on_after(0.01) as scope:
            await probe(quiet, 60.0)
        assert scope.cancelled_caught
        assert open_descriptors() == before


PROBES = """
import anyio, json, sys
from driver.probe import probe
from driver.values import Target

async def main():
    answers = {}
    for host in sys.argv[1:]:
        answer = await probe(Target(host, 443), 0.3)
        answers[host] = [answer.verdict.value, answer.how]
    print(json.dumps(answers))

anyio.run(main)
"""

LISTENER = """
import socket, sys
server = socket.create_server(("10.96.0.1", 443))
print("ready", flush=True)
sys.stdin.read()
"""

# A sandbox with one link to its node, which routes. 10.96/16 is behind the node, 10.97/16 decided in the sandbox.
SANDBOX = """
link set lo up
addr add 10.99.0.2/24 dev inside
addr add fd99::2/64 dev inside nodad
link set inside up
route add 10.96.0.0/16 via 10.99.0.1
route add fd96::/64 via fd99::1
route add prohibit 10.97.0.1
route add unreachable 10.97.0.2
route add blackhole 10.97.0.3
route add prohibit fd97::1
"""
NODE = """
link set lo up
addr add 10.99.0.1/24 dev outside
addr add fd99::1/64 dev outside nodad
link set outside up
addr add 10.96.0.1/32 dev lo
addr add 10.96.0.2/32 dev lo
route add blackhole 10.96.0.3
route add unreachable 10.96.0.4
route add prohibit 10.96.0.5
route add prohibit fd96::5
"""


def run_ip(*arguments: str, batch: str | None = None) -> None:
    subprocess.run(["ip", *arguments], input=batch, text=True, check=True, capture_output=True, timeout=20)


@pytest.fixture(scope="module")
def verdicts() -> Iterator[dict[str, list[str]]]:
    """What probes find out in a real sandbox network, by address."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    sandbox, node = f"sandbox-{os.getpid()}", f"node-{os.getpid()}"
    with ExitStack() as stack:
        for name in (sandbox, node):
            try:
                run_ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
            stack.callback(run_ip, "netns", "delete", name)
        run_ip("-n", sandbox, "link", "add", "inside", "type", "veth", "peer", "name", "outside", "netns", node)
        run_ip("-n", node, "-batch", "-", batch=NODE)
        run_ip("-n", sandbox, "-batch", "-", batch=SANDBOX)
        for key in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            path = "/proc/sys/" + key.replace(".", "/")
            run_ip("netns", "exec", node, "sh", "-c", f"echo 1 >{path}")
        listener = stack.enter_context(
            subprocess.Popen(
                ["ip", "netns", "exec", node, sys.executable, "-I", "-c", LISTENER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert listener.stdout is not None
        assert listener.stdout.readline() == "ready\n"
        done = subprocess.run(
            ["ip", "netns", "exec", sandbox, sys.executable, "-I", "-c", PROBES, *EXPECTED],
            stdout=subprocess.PIPE,
            check=True,
            timeout=30,
        )
        yield json.loads(done.stdout)
        listener.communicate()


EXPECTED = {
    "10.96.0.1": ("open", "opened"),  # the API server answers: no policy
    "10.96.0.2": ("closed", "refused"),
    "10.96.0.3": ("closed", "timed_out"),  # dropped on the node
    "10.96.0.4": ("closed", "host_unreachable"),  # the node answers: host unreachable
    "10.96.0.5": ("closed", "host_unreachable"),  # the node answers: administratively prohibited
    "fd96::5": ("closed", "prohibited"),  # the same over IPv6
    "10.97.0.1": ("closed", "prohibited"),  # the sandbox's own prohibit route
    "fd97::1": ("closed", "prohibited"),
    "10.97.0.2": ("closed", "host_unreachable"),
    "10.97.0.3": ("local_fault", "EINVAL"),  # the sandbox's own blackhole route
    "10.98.0.1": ("closed", "net_unreachable"),  # no route
    "10.99.0.77": ("closed", "timed_out"),  # nobody answers on the link
}


@pytest.mark.netns
@pytest.mark.parametrize("address", EXPECTED)
def test_real_network(verdicts: dict[str, list[str]], address: str) -> None:
    """What a router or a route does to packets is told apart as the table says."""
    assert tuple(verdicts[address]) == EXPECTED[address]
