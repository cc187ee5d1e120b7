"""One probe of the isolation gate: a TCP connection that should not come about, and what its end says."""

import errno
import socket
from dataclasses import dataclass
from enum import Enum
from typing import Final

import anyio

from driver.values import Target


class Verdict(Enum):
    """What one probe says about the policy. A LOCAL_FAULT says nothing about it."""

    CLOSED = "closed"
    OPEN = "open"
    LOCAL_FAULT = "local_fault"


@dataclass(frozen=True)
class Probe:
    """One probe: its verdict, and how it came about in one stable word for the logs."""

    verdict: Verdict
    how: str


# Only what somebody on the way, or the kernel's own policy, says in answer to a connect is a proof
# (connect(2), ip(7); icmp_err_convert and tab_unreach in the kernel turn each ICMP code into one of these).
_CLOSED: Final = {
    errno.ECONNREFUSED: "refused",  # a reset, or ICMP port unreachable
    errno.ETIMEDOUT: "timed_out",
    errno.EHOSTUNREACH: "host_unreachable",  # also ICMP "administratively prohibited" (IPv4)
    errno.ENETUNREACH: "net_unreachable",  # also no route at all, hence the positive control
    errno.EHOSTDOWN: "host_unreachable",  # ICMP host unknown
    errno.ENONET: "host_unreachable",  # ICMP source host isolated
    errno.ENOPROTOOPT: "protocol_unreachable",  # ICMP protocol unreachable: a choice of packet filters
    errno.EACCES: "prohibited",  # a prohibit route, or ICMPv6 "administratively prohibited"
    errno.EPERM: "not_permitted",  # a cgroup's eBPF connect hook
}

# These come after the handshake only: whoever reset the connection had accepted it.
_OPENED: Final = {
    0: "opened",
    errno.ECONNRESET: "opened_then_reset",
    errno.EPIPE: "opened_then_reset",
}


def classify(result: int | None) -> Probe:
    """The gate's table. `result` is how a connect ended: 0, an errno, or None while it is still under way.

    What is in neither table proves nothing and is a LOCAL_FAULT, so that the gate fails closed: no file
    descriptor (EMFILE, ENFILE), no memory (ENOBUFS, ENOMEM), no source port or address (EADDRNOTAVAIL,
    EAGAIN), no such family (EAFNOSUPPORT), own interface down (ENETDOWN), a local blackhole route or a bad
    address (EINVAL), a connection that was destroyed locally (ECONNABORTED).
    """
    if result is None:
        return Probe(Verdict.CLOSED, "timed_out")
    if result in _OPENED:
        return Probe(Verdict.OPEN, _OPENED[result])
    if result in _CLOSED:
        return Probe(Verdict.CLOSED, _CLOSED[result])
    return _local_fault(result)


def _local_fault(number: int | None) -> Probe:
    return Probe(Verdict.LOCAL_FAULT, errno.errorcode.get(number or 0, f"errno {number}"))


async def probe(target: Target, open_timeout: float) -> Probe:
    """One TCP connection to `target`, closed at once. It has `open_timeout` seconds to open."""
    family = socket.AF_INET6 if ":" in target.host else socket.AF_INET
    try:
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError as error:
        # Even a permission error: without a socket nothing was asked of the network.
        return _local_fault(error.errno)
    with connection:
        try:
            return classify(await _connect(connection, target, open_timeout))
        except OSError as error:  # a scope that names no interface, or no room to wait for the socket
            return _local_fault(error.errno)


async def _connect(connection: socket.socket, target: Target, open_timeout: float) -> int | None:
    started = connection.connect_ex((target.host, target.port))
    if started != errno.EINPROGRESS:
        return started
    with anyio.move_on_after(open_timeout):
        while (result := _state(connection)) is None:
            await anyio.wait_writable(connection)
        return result
    # The time may be up because this process stood still: what counts is what the socket says now.
    return _state(connection)


def _state(connection: socket.socket) -> int | None:
    if failed := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        return failed
    try:
        connection.getpeername()
    except OSError:
        return None
    return 0
