"""The gateway and the gate: whether the one is reachable and the other proves something. The token is not sent."""

import http.client
import socket
import ssl
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Final, cast
from urllib.parse import urlsplit

import anyio

from driver.check.finding import Finding, failure, warning
from driver.check.reading import TARGET, Reading
from driver.exits import CheckExit
from driver.gateway.answer import CONNECT_SECONDS, USER_AGENT, tls_context
from driver.isolation import Step, decide
from driver.probe import probe
from driver.values import Target

_CLOCK_SECONDS: Final = 30.0
_CERTIFICATE_SECONDS: Final = 14 * 86_400.0
_PROBES: Final = 3
_BETWEEN_PROBES: Final = 0.2


@dataclass
class Network:
    """`answered` becomes true once the gateway has answered, whatever it said: the gate's positive control."""

    reading: Reading
    answered: bool = field(default=False, init=False)

    def gateway(self) -> Iterator[Finding]:
        """Ask the gateway for nothing, without the token: the status does not matter, the answer does."""
        url = self.reading.gateway_url
        if url is None:
            return
        try:
            context = tls_context(url, self.reading.settings.gateway_ca)
        except OSError as error:
            advice = "name a PEM file with certificates in HEPHAESTUS_GATEWAY_CA"
            yield failure("gateway", "authorities", f"cannot be loaded: {error}", advice, CheckExit.SETTINGS)
            return
        connection = _connection(url, context)
        try:
            connection.connect()
            yield Finding("gateway", "connection", f"to {url} opens")
            yield from _certificate(connection.sock)
            connection.request("GET", f"{urlsplit(url).path}/internal/agent/", headers={"user-agent": USER_AGENT})
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            yield _unreached(url, error)
            return
        finally:
            connection.close()
        self.answered = True
        yield _status(response.status)
        yield _clock(response.headers.get("date"), time.time())

    def isolation(self) -> Iterator[Finding]:
        """The gate's verdict on a few probes, one line each. It waits for no window."""
        if not self.reading.gate_known:
            return
        gate = self.reading.settings.isolation
        if gate.target is None:
            advice = "leave DRIVER_ISOLATION out where untrusted work runs"
            yield warning("isolation", "gate", "is off: nothing proves that the network is closed", advice)
            return
        for number in range(_PROBES):
            if number:
                time.sleep(_BETWEEN_PROBES)
            yield self._probed(gate.target, gate.open_timeout)

    def _probed(self, target: Target, open_timeout: float) -> Finding:
        result = anyio.run(probe, target, open_timeout)
        name = f"probe of {target}"
        step = decide(result, controlled=self.answered, overdue=True)
        if step is Step.HOLDS:
            return Finding("isolation", name, f"{result.how}: the network policy holds")
        if step is Step.NO_NETWORK:
            found = f"{result.how}, but the gateway has not answered either: this is no network, and proves nothing"
            return warning("isolation", name, found, "mend the way to the gateway first")
        if step is Step.NO_PROBE:
            found = f"cannot be made ({result.how}), so the gate stays shut"
            return failure("isolation", name, found, f"see what {TARGET} names", CheckExit.MACHINE)
        advice = (
            "apply the network policy of deploy/, and see that the cluster enforces policies; "
            "an API server on the Pod's own node may stay reachable: run sandboxes on other nodes"
        )
        return failure("isolation", name, f"{result.how}: no run starts here", advice, CheckExit.UNISOLATED)


def _connection(url: str, context: ssl.SSLContext | bool) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if isinstance(context, ssl.SSLContext):
        return http.client.HTTPSConnection(host, parts.port, timeout=CONNECT_SECONDS, context=context)
    return http.client.HTTPConnection(host, parts.port, timeout=CONNECT_SECONDS)


def _unreached(url: str, error: Exception) -> Finding:
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = "name the authority that signed it in HEPHAESTUS_GATEWAY_CA, or use the host that it is made out to"
        return failure("gateway", "certificate", error.verify_message, advice, CheckExit.GATEWAY)
    if isinstance(error, socket.gaierror):
        advice = "use an IP address (a closed sandbox has no DNS), or allow DNS by the network policy"
        return failure("gateway", "connection", f"no address for {url}: {error.strerror}", advice, CheckExit.GATEWAY)
    said = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    advice = "see that the gateway runs, and that the network policy lets this sandbox reach it"
    return failure("gateway", "connection", f"to {url} fails: {said}", advice, CheckExit.GATEWAY)


def _status(status: int) -> Finding:
    if status >= 500:
        return warning("gateway", "answer", f"{status}: it is there, but not well", "look at the gateway's own log")
    if 300 <= status < 400:
        advice = "name the gateway's own address: the driver follows no redirect"
        return warning("gateway", "answer", f"{status}: a redirect", advice)
    return Finding("gateway", "answer", f"{status} to a request without the token: it is there")


def _certificate(connection: object) -> Iterator[Finding]:
    if not isinstance(connection, ssl.SSLSocket) or not (shown := connection.getpeercert()):
        return
    rows = cast("Iterable[Iterable[tuple[str, str]]]", shown.get("issuer", ()))
    issuer = ", ".join(f"{key}={value}" for row in rows for key, value in row)
    seconds = ssl.cert_time_to_seconds(str(shown["notAfter"])) - time.time()
    found = f"of {issuer}, valid for another {seconds / 86_400:,.0f} days"
    if seconds < _CERTIFICATE_SECONDS:
        yield warning("gateway", "certificate", found, "renew it: afterwards no driver reaches the gateway")
    else:
        yield Finding("gateway", "certificate", found)


def _clock(date: str | None, now: float) -> Finding:
    try:
        theirs = parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return Finding("clock", "difference", "unknown: the answer has no Date")
    difference = now - theirs
    found = f"{abs(difference):,.0f} s {'ahead of' if difference >= 0 else 'behind'} the gateway"
    if abs(difference) < _CLOCK_SECONDS:
        return Finding("clock", "difference", found)
    advice = "set this node's clock: leases do not depend on it, but certificates, tokens and the log's times do"
    return warning("clock", "difference", found, advice)
