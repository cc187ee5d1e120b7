"""The values that a setting may have: each parser takes the text and raises ValueError saying what is allowed."""

import ipaddress
import math
import os
import re
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
_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?\.?")
# More than any machine has, and less than what a resource limit can hold.
_LARGEST_SIZE: Final = 1 << 60


@dataclass(frozen=True)
class Target:
    """An address and port. The address is numeric: a sandbox has no DNS."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def gateway_url(text: str) -> str:
    """The address with its scheme in lower case, without slashes at its end."""
    wrong = "must be http://ADDRESS[:PORT] or https://ADDRESS[:PORT]"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(wrong) from None
    # urlsplit passes over white space and control characters, which a request may not hold.
    is_plain = text.isascii() and text.isprintable() and " " not in text
    if not is_plain or parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(wrong)
    if "@" in parts.netloc or "?" in text or "#" in text:
        raise ValueError("must have no user, query or fragment")
    _require_host(parts.hostname, in_brackets="[" in parts.netloc)
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")


def _require_host(host: str, *, in_brackets: bool) -> None:
    """What looks like an address must be one; anything else must be a name."""
    try:
        if in_brackets:
            ipaddress.IPv6Address(host)
        elif not host.strip("0123456789."):
            ipaddress.IPv4Address(host)
        elif not _NAME.fullmatch(host):
            raise ValueError
    except ValueError:
        raise ValueError(f"has a host that is neither an IP address nor a name: {host}") from None


def target(text: str) -> Target:
    return _target(text, address)


def target_elsewhere(text: str) -> Target:
    """A target that is not this host, whose refusal would prove nothing of a network policy."""
    return _target(text, address_elsewhere)


def _target(text: str, parse: Callable[[str], str]) -> Target:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or len(port) > 5 or not 1 <= int(port) <= 65_535:
        raise ValueError("must be ADDRESS:PORT, as in 10.96.0.1:443 or [fd00::1]:443")
    return Target(parse(host.removeprefix("[").removesuffix("]")), int(port))


def address(text: str) -> str:
    found = _address(text)
    # connect(2) to an unspecified address reaches this host itself, whose refusal would prove nothing.
    if found.is_unspecified or found.is_multicast:
        raise ValueError("must be the IP address of one host")
    return str(found)


def address_elsewhere(text: str) -> str:
    """An address that is not this host's."""
    if _address(text).is_loopback:
        raise ValueError("must not be a loopback address in a Pod")
    return address(text)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """What is reached at an address: behind `::ffff:127.0.0.1` that is 127.0.0.1."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError("must be an IP address") from None
    return getattr(found, "ipv4_mapped", None) or found


def absolute_path(text: str) -> Path:
    path = Path(text)
    # POSIX leaves `//` to the system, and Linux takes it for `/`.
    if not path.is_absolute() or len(path.parts) == 1 or ".." in path.parts or text.startswith("//"):
        raise ValueError("must be an absolute path below /")
    return path


def existing_file(text: str) -> Path:
    if not os.path.isfile(text):
        raise ValueError("must name a file")
    return Path(text)


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
            value = float(text.removesuffix("s")) if text.isascii() else math.nan
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise ValueError(f"must be seconds from {least:g} to {most:g}")
        return value

    return parse


def count(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = _whole(text)
        if value is None or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most:,}")
        return value

    return parse


_UNITS: Final = {"KiB": KIB, "MiB": MIB, "GiB": GIB, "": 1}


def size(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        digits = text.rstrip("KMGiB ")
        unit = text[len(digits) :].strip()
        number = _whole(digits)
        if number is None or unit not in _UNITS or not least <= number * _UNITS[unit] <= _LARGEST_SIZE:
            raise ValueError(f"must be a size of at least {least:,} bytes, in bytes, KiB, MiB or GiB")
        return number * _UNITS[unit]

    return parse


def _whole(text: str) -> int | None:
    """The number that ASCII digits write, or None; longer than any bound it is none either."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


def optional(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    return lambda text: parse(text) if text else None
