"""The values that a setting may have: each parser takes the text and raises ValueError saying what is allowed."""

import ipaddress
import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB


@dataclass(frozen=True)
class Target:
    """An address and port. The address is numeric: a sandbox has no DNS."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def gateway_url(text: str) -> str:
    parts = urlsplit(text)
    try:
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        port_is_valid = False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_valid:
        raise ValueError("must be http://ADDRESS[:PORT] or https://ADDRESS[:PORT]")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("must have no user, query or fragment")
    return text.rstrip("/")


def target(text: str) -> Target:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 1 <= int(port) <= 65_535:
        raise ValueError("must be ADDRESS:PORT, as in 10.96.0.1:443 or [fd00::1]:443")
    return Target(address(host.removeprefix("[").removesuffix("]")), int(port))


def target_elsewhere(text: str) -> Target:
    """A target that is not this host, whose refusal would prove nothing of a network policy."""
    found = target(text)
    if ipaddress.ip_address(found.host).is_loopback:
        raise ValueError("must not be a loopback address in a Pod")
    return found


def address(text: str) -> str:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError("must be an IP address") from None
    # connect(2) to an unspecified address reaches this host itself, whose refusal would prove nothing.
    if found.is_unspecified or found.is_multicast:
        raise ValueError("must be the IP address of one host")
    return str(found)


def absolute_path(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute() or path == Path("/") or ".." in path.parts:
        raise ValueError("must be an absolute path below /")
    return path


def existing_file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise ValueError("must name a file")
    return path


def command(text: str) -> tuple[str, ...]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"must be a command in shell words ({error})") from None
    if not words:
        raise ValueError("must be a command")
    return tuple(words)


def one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text

    return parse


def seconds(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text.removesuffix("s"))
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise ValueError(f"must be seconds from {least:g} to {most:g}")
        return value

    return parse


def count(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
            raise ValueError(f"must be a whole number from {least} to {most:,}")
        return int(text)

    return parse


_UNITS: Final = {"KiB": KIB, "MiB": MIB, "GiB": GIB, "": 1}


def size(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        digits = text.rstrip("KMGiB ")
        unit = text[len(digits) :].strip()
        if not (digits.isascii() and digits.isdigit()) or unit not in _UNITS or int(digits) * _UNITS[unit] < least:
            raise ValueError(f"must be a size of at least {least:,} bytes, in bytes, KiB, MiB or GiB")
        return int(digits) * _UNITS[unit]

    return parse


def optional(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    return lambda text: parse(text) if text else None
