"""The check from its start to its exit code. Each part is bounded, and one that fails takes no other with it."""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from driver.check import commands, kernel, network, places, reading, token
from driver.check.finding import Finding, failure, worst
from driver.check.render import as_json, as_text
from driver.exits import CheckExit
from driver.secrets import Secrets

_PART_SECONDS: Final = 15.0


def run(environ: Mapping[str, str], *, quick: bool, machine: bool, problems: Sequence[str] = ()) -> int:
    """Look at everything, write it to stdout, and return a code of CheckExit.

    `quick` leaves out what takes longer: the network, and starting commands. `machine` asks for JSON. `problems` are
    those of the settings that were found before.
    """
    findings = list(kernel.protect())
    driver = token.running_driver()
    read = _without_hidden_token(reading.read(environ, problems), environ, driver)
    findings += reading.look(read, environ)
    findings += _bounded("token", lambda: token.look(read, driver))
    if not quick:
        ways = network.Network(read)
        findings += _bounded("gateway", ways.gateway)
        findings += _bounded("isolation", ways.isolation)
    findings += _bounded("kernel", lambda: kernel.look(read))
    findings += _bounded("limits", lambda: kernel.limits(read))
    findings += _bounded("places", lambda: places.look(read, environ))
    findings += _bounded("commands", lambda: commands.look(read, environ, versions=not quick))
    if read.token is not None:
        secrets = Secrets(read.token)
        findings = [_masked(finding, secrets) for finding in findings]
    colour = sys.stdout.isatty() and not environ.get("NO_COLOR")
    _write(as_json(findings) if machine else as_text(findings, colour=colour))
    return worst(findings)


def _without_hidden_token(read: reading.Reading, environ: Mapping[str, str], driver: int | None) -> reading.Reading:
    """Beside a driver it is right that this process was given no token, so that is no problem."""
    if driver is None or environ.get(reading.TOKEN) or environ.get(reading.TOKEN_FILE):
        return read
    return replace(read, problems=tuple(each for each in read.problems if not each.startswith(f"{reading.TOKEN}:")))


def _bounded(part: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """What the part finds. One that hangs, in a file system for one, is left behind in its thread."""
    found: list[Finding] = []
    faults: list[Exception] = []

    def collect() -> None:
        try:
            found.extend(look())
        except Exception as error:  # told below: whoever runs the check has trouble enough
            faults.append(error)

    thread = threading.Thread(target=collect, daemon=True, name=part)
    thread.start()
    thread.join(_PART_SECONDS)
    if thread.is_alive():
        advice = "look for a file system or an address that does not answer"
        late = f"took longer than {_PART_SECONDS:g} s"
        return [*found, failure(part, "this part", late, advice, CheckExit.MACHINE)]
    if faults:
        advice = "report this: it is a fault of the check"
        return [*found, failure(part, "this part", f"failed: {faults[0]!r}", advice, CheckExit.MACHINE)]
    return found


def _masked(finding: Finding, secrets: Secrets) -> Finding:
    return replace(finding, found=secrets.mask(finding.found), advice=secrets.mask(finding.advice))


def _write(text: str) -> None:
    data = text.encode("utf-8", "replace")
    while data:
        data = data[os.write(1, data) :]
