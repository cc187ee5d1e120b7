"""The token: what it says of itself, and whether somebody here can read it. The token is never part of a finding."""

import base64
import binascii
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from driver.check.finding import Finding, failure, warning
from driver.check.reading import TOKEN, Reading
from driver.exits import CheckExit

_SHOWN: Final = ("sub", "iss", "aud")
_LONGEST_CLAIM: Final = 120
_SOON_SECONDS: Final = 600.0


def running_driver() -> int | None:
    """The pid of the driver of this container, which is PID 1 there, or None outside of one."""
    try:
        words = Path("/proc/1/cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return None
    is_driver = words[-2:] == [b"-m", b"driver"] or (bool(words) and words[-1].endswith(b"/agent-sandbox-driver"))
    return 1 if is_driver else None


def look(reading: Reading, driver: int | None) -> Iterator[Finding]:
    """What the token says, then who can read it. `driver` is the pid of a driver that runs here."""
    if reading.token is not None:
        yield from _claims(reading.token, time.time())
    elif driver is not None:
        yield Finding("token", "the token", f"is not readable here, which is right: process {driver} alone holds it")
    if driver is not None:
        yield _protection(driver)
    if driver is not None and reading.token is not None:
        yield warning(
            "token",
            "this process",
            "was started with the token, as `kubectl exec` and exec probes are, beside a driver",
            "do this only where no untrusted work runs: programs of the same user can read it meanwhile",
        )


def _protection(driver: int) -> Finding:
    name = f"process {driver}"
    try:
        environment = Path(f"/proc/{driver}/environ").read_bytes()
    except OSError:
        return Finding("token", name, "the driver's environment and memory are closed to this process")
    if any(entry.startswith(f"{TOKEN}=".encode()) for entry in environment.split(b"\0")):
        advice = "start the driver by entrypoint.sh, which hands the token over on a descriptor"
        return failure("token", name, "the token stands in the driver's environment", advice, CheckExit.MACHINE)
    advice = "run the sandbox as a user other than root, with all capabilities dropped"
    return warning("token", name, "this process may look into the driver, which programs must not", advice)


def _claims(token: str, now: float) -> Iterator[Finding]:
    claims = _decoded(token)
    if claims is None:
        yield Finding("token", "claims", "none: it is not a readable JWT, so the gateway alone knows what it is worth")
        return
    for name in _SHOWN:
        if name in claims:
            yield Finding("token", name, _printable(claims[name]))
    yield from _times(claims, now)


def _times(claims: Mapping[str, Any], now: float) -> Iterator[Finding]:
    new_token = "the gateway has to give this sandbox a new token: claim a new sandbox"
    begins, expires = claims.get("nbf"), claims.get("exp")
    if isinstance(begins, (int, float)) and begins > now:
        found = f"is valid only in {begins - now:,.0f} s"
        yield warning("token", "nbf", found, "see that the clocks of this node and of the gateway agree")
    if not isinstance(expires, (int, float)):
        yield Finding("token", "exp", "it names no expiry")
    elif expires <= now:
        yield failure("token", "exp", f"expired {now - expires:,.0f} s ago", new_token, CheckExit.SETTINGS)
    elif expires - now < _SOON_SECONDS:
        yield warning("token", "exp", f"expires in {expires - now:,.0f} s", new_token)
    else:
        yield Finding("token", "exp", f"expires in {expires - now:,.0f} s")


def _decoded(token: str) -> dict[str, Any] | None:
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None


def _printable(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= _LONGEST_CLAIM else text[:_LONGEST_CLAIM] + "..."
