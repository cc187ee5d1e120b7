"""The driver's settings: read once from the environment, frozen, and passed down.

Every problem is found before any is reported, so that one look at the log mends them all.
"""

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from driver import values
from driver.errors import SettingsError
from driver.log import LEVELS, RENDERERS

T = TypeVar("T")

_HANDED_OVER: Final = ("/dev/fd/", "/proc/self/fd/")
DRIVER_SHARE: Final = 192 * values.MIB
"""What the driver keeps for itself of the container's memory limit, in bytes."""

_UNLIMITED: Final = 1 << 60
_CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True)
class IsolationSettings:
    """`target` is None only when the gate is off. Times are in seconds."""

    target: values.Target | None
    open_timeout: float
    window: float


@dataclass(frozen=True)
class ModelSettings:
    """The door's budgets: active exchanges, waiting places, seconds of waiting, retained bytes."""

    transports: int
    queue: int
    wait: float
    storage: int


@dataclass(frozen=True)
class ProgramSettings:
    """Commands of the kinds' programs and their limits; sizes in bytes."""

    review: tuple[str, ...]
    compose: tuple[str, ...]
    digest: tuple[str, ...]
    session_heap: int
    session_size: int
    memory: int | None
    disk: int
    processes: int


@dataclass(frozen=True)
class Settings:
    """Everything the driver was told. `token` never leaves this process except to the gateway.

    `token_file` is where it came from, if that is a file that stays: no descriptor that was handed over.
    """

    gateway_url: str
    token: str
    token_file: Path | None
    gateway_ca: Path | None
    workspace: Path
    isolation: IsolationSettings
    poll_min: float
    poll_max: float
    stop_grace: float
    model: ModelSettings
    program: ProgramSettings
    log_format: str
    log_level: str

    def __repr__(self) -> str:
        return f"Settings(gateway_url={self.gateway_url!r}, token='***')"


def read(environ: Mapping[str, str]) -> Settings:
    """The settings in `environ`. Raises SettingsError with every problem at once."""
    reader = _Reader(environ)
    settings = Settings(
        gateway_url=reader.get("HEPHAESTUS_GATEWAY_URL", values.gateway_url),
        token=reader.token(),
        token_file=reader.token_file(),
        gateway_ca=reader.get("HEPHAESTUS_GATEWAY_CA", values.optional(values.existing_file), ""),
        workspace=reader.get("DRIVER_WORKSPACE", values.absolute_path, "/workspace"),
        isolation=reader.isolation(),
        poll_min=reader.get("DRIVER_POLL_MIN", values.seconds(0.01, 3600), "1"),
        poll_max=reader.get("DRIVER_POLL_MAX", values.seconds(0.01, 3600), "5"),
        stop_grace=reader.get("DRIVER_STOP_GRACE", values.seconds(1, 3600), "25"),
        model=ModelSettings(
            transports=reader.get("DRIVER_MODEL_TRANSPORTS", values.count(1, 10_000), "32"),
            queue=reader.get("DRIVER_MODEL_QUEUE", values.count(0, 100_000), "128"),
            wait=reader.get("DRIVER_MODEL_WAIT", values.seconds(0.01, 3600), "30"),
            storage=reader.get("DRIVER_MODEL_STORAGE", values.size(32 * values.MIB), "512MiB"),
        ),
        program=ProgramSettings(
            review=reader.get("DRIVER_PROGRAM_REVIEW", values.command, _bundled("measure")),
            compose=reader.get("DRIVER_PROGRAM_COMPOSE", values.command, _bundled("compose")),
            digest=reader.get("DRIVER_PROGRAM_DIGEST", values.command, _bundled("digest")),
            session_heap=reader.get("DRIVER_SESSION_HEAP", values.size(values.MIB), "256MiB"),
            session_size=reader.get("DRIVER_SESSION_SIZE", values.size(64 * values.KIB), "3MiB"),
            memory=reader.get("DRIVER_PROGRAM_MEMORY", values.optional(values.size(16 * values.MIB)), "")
            or _programs_share(),
            disk=reader.get("DRIVER_PROGRAM_DISK", values.size(values.MIB), "2GiB"),
            processes=reader.get("DRIVER_PROGRAM_PROCESSES", values.count(1, 1_000_000), "512"),
        ),
        log_format=reader.get("DRIVER_LOG", values.one_of(*RENDERERS), "json"),
        log_level=reader.get("DRIVER_LOG_LEVEL", values.one_of(*LEVELS), "info"),
    )
    if not reader.problems and settings.poll_max < settings.poll_min:
        reader.problems.append("DRIVER_POLL_MAX: must not be below DRIVER_POLL_MIN")
    if not reader.problems and settings.program.session_size > settings.program.session_heap:
        reader.problems.append("DRIVER_SESSION_SIZE: must not be above DRIVER_SESSION_HEAP")
    if reader.problems:
        raise SettingsError(reader.problems)
    return settings


class _Reader:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.problems: list[str] = []

    def get(self, name: str, parse: Callable[[str], T], default: str | None = None) -> T:
        """The parsed setting; a problem is noted and leaves a value that nobody may use."""
        raw = self._environ.get(name, "") or default
        if raw is None:
            self.problems.append(f"{name}: is required")
            return None  # type: ignore[return-value] # read() raises before anybody sees it
        try:
            return parse(raw)
        except ValueError as error:
            self.problems.append(f"{name}: {error}")
            return None  # type: ignore[return-value] # read() raises before anybody sees it

    def token(self) -> str:
        """The token itself is never part of a problem."""
        given = self._environ.get("HEPHAESTUS_SANDBOX_TOKEN", "")
        file = self._environ.get("HEPHAESTUS_SANDBOX_TOKEN_FILE", "")
        if bool(given) == bool(file):
            self.problems.append(
                "HEPHAESTUS_SANDBOX_TOKEN: exactly one of it and HEPHAESTUS_SANDBOX_TOKEN_FILE is required"
            )
            return ""
        name = "HEPHAESTUS_SANDBOX_TOKEN_FILE" if file else "HEPHAESTUS_SANDBOX_TOKEN"
        try:
            token = read_token_file(file) if file else given
        except (OSError, UnicodeDecodeError) as error:
            self.problems.append(f"{name}: cannot be read ({_reason(error)})")
            return ""
        token = token.strip()
        if not (8 <= len(token) <= 16 * values.KIB and token.isascii() and token.isprintable() and " " not in token):
            self.problems.append(f"{name}: must be 8 to 16,384 printable ASCII characters without spaces")
        return token

    def token_file(self) -> Path | None:
        file = self._environ.get("HEPHAESTUS_SANDBOX_TOKEN_FILE", "")
        return Path(file) if file and not file.startswith(_HANDED_OVER) else None

    def isolation(self) -> IsolationSettings:
        mode = self.get("DRIVER_ISOLATION", values.one_of("api", "off"), "api")
        target: values.Target | None = None
        if mode == "off":
            if self._environ.get("KUBERNETES_SERVICE_HOST"):
                self.problems.append("DRIVER_ISOLATION: `off` is refused in a Pod (KUBERNETES_SERVICE_HOST is set)")
        elif self._environ.get("DRIVER_ISOLATION_TARGET"):
            in_a_pod = bool(self._environ.get("KUBERNETES_SERVICE_HOST"))
            target = self.get("DRIVER_ISOLATION_TARGET", values.target_elsewhere if in_a_pod else values.target)
        elif self._environ.get("KUBERNETES_SERVICE_HOST"):
            host = self.get("KUBERNETES_SERVICE_HOST", values.address_elsewhere)
            port = self.get("KUBERNETES_SERVICE_PORT", values.count(1, 65_535))
            target = values.Target(host, port)
        elif mode == "api":
            self.problems.append(
                "DRIVER_ISOLATION_TARGET: is required outside a Pod: `address:port` of what the network policy "
                "must close, or DRIVER_ISOLATION=off on a machine that is no Pod"
            )
        return IsolationSettings(
            target=target,
            open_timeout=self.get("DRIVER_ISOLATION_OPEN_TIMEOUT", values.seconds(0.01, 60), "0.3"),
            window=self.get("DRIVER_ISOLATION_WINDOW", values.seconds(0.1, 600), "10"),
        )


def read_token_file(name: str) -> str:
    """Read the token; a descriptor that was handed over as /dev/fd/N is closed, so that it is gone after."""
    prefix, _, number = name.rpartition("/")
    if prefix in ("/dev/fd", "/proc/self/fd") and re.fullmatch("[0-9]{1,7}", number):
        with os.fdopen(int(number), encoding="ascii") as file:
            return file.read(17 * values.KIB)
    with open(name, encoding="ascii") as file:
        return file.read(17 * values.KIB)


def _reason(error: Exception) -> str:
    return error.strerror or "unreadable" if isinstance(error, OSError) else "not ASCII text"


def _bundled(module: str) -> str:
    # -I: neither the workspace nor the environment may put a module in the program's way.
    return shlex.join([sys.executable, "-I", "-m", f"kinds.programs.{module}"])


def _programs_share() -> int | None:
    """The container's memory limit less the driver's share, or None where there is no limit."""
    limit = container_memory()
    return None if limit is None else max(limit - DRIVER_SHARE, 64 * values.MIB)


def container_memory() -> int | None:
    """The container's memory limit in bytes, or None where there is no limit (cgroups(7))."""
    for path in _CGROUP_LIMITS:
        try:
            text = path.read_text("ascii").strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < _UNLIMITED:
            return int(text)
    return None
