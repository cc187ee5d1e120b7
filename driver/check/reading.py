"""Reads the settings as the driver does, and goes on with what is right of them where some are wrong."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from driver import settings
from driver.check.finding import Finding, failure, warning
from driver.errors import SettingsError
from driver.exits import CheckExit
from driver.settings import Settings

TOKEN: Final = "HEPHAESTUS_SANDBOX_TOKEN"
TOKEN_FILE: Final = "HEPHAESTUS_SANDBOX_TOKEN_FILE"
GATEWAY_URL: Final = "HEPHAESTUS_GATEWAY_URL"
TARGET: Final = "DRIVER_ISOLATION_TARGET"

_PREFIXES: Final = ("DRIVER_", "HEPHAESTUS_")
# Read by entrypoint.sh, or only where other settings ask for it.
_ALSO_KNOWN: Final = frozenset({"DRIVER_PYTHON", TARGET, TOKEN, TOKEN_FILE})
_HANDED_OVER: Final = ("/dev/fd/", "/proc/self/fd/")

# Stand in for what is missing or wrong, so that the rest can be read; nobody uses them.
_STAND_INS: Final = {GATEWAY_URL: "http://127.0.0.1:9", TOKEN: "stand-in"}
# What the first is measured against, which may be the one that is wrong.
_PARTNERS: Final = {"DRIVER_POLL_MAX": "DRIVER_POLL_MIN", "DRIVER_SESSION_SIZE": "DRIVER_SESSION_HEAP"}
_GATE: Final = frozenset({"DRIVER_ISOLATION", TARGET, "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"})


@dataclass(frozen=True)
class Reading:
    """`settings` holds defaults, or a stand-in, in place of what is wrong.

    `wrong` names those variables, `problems` says what is wrong with them. `token` and `gateway_url` are None, and
    `gate_known` is false, where they could not be read. `token_file` is a file that stays, as it was given.
    """

    settings: Settings
    problems: tuple[str, ...]
    wrong: frozenset[str]
    known: frozenset[str]
    token_file: Path | None

    @property
    def token(self) -> str | None:
        return None if {TOKEN, TOKEN_FILE} & self.wrong else self.settings.token

    @property
    def gateway_url(self) -> str | None:
        return None if GATEWAY_URL in self.wrong else self.settings.gateway_url

    @property
    def gate_known(self) -> bool:
        return not _GATE & self.wrong


class _Asked(dict[str, str]):
    """An environment that remembers which variables were asked for."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(environ)
        self.names: set[str] = set()

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override] # of one type only
        self.names.add(name)
        return super().get(name, default)


def read(environ: Mapping[str, str], problems: Sequence[str] = ()) -> Reading:
    """Read what can be read. `problems` are those that were found before."""
    token_file = environ.get(TOKEN_FILE, "")
    asked = _Asked(environ)
    if not environ.get(TOKEN) and token_file.startswith(_HANDED_OVER):
        _take_token(asked, token_file)
    found = list(problems)
    wrong = {_name(problem) for problem in found}
    while (result := _attempt(asked, found, wrong)) is None:
        pass
    stays = Path(token_file) if token_file and not token_file.startswith(_HANDED_OVER) else None
    return Reading(result, tuple(found), frozenset(wrong), frozenset(asked.names) | _ALSO_KNOWN, stays)


def _attempt(asked: _Asked, found: list[str], wrong: set[str]) -> Settings | None:
    """The settings, or None once what is wrong was noted and set right.

    Raises SettingsError where setting it right changed nothing.
    """
    try:
        return settings.read(asked)
    except SettingsError as error:
        # A later try finds the problems between settings, which are looked for only where each is right.
        found += [problem for problem in error.problems if problem not in found]
        names = {_name(problem) for problem in error.problems}
        wrong |= names
        before = dict(asked)
        _set_right(asked, names)
        if asked == before:
            raise
        return None


def _take_token(asked: _Asked, token_file: str) -> None:
    """Read the descriptor, which can be done once only."""
    try:
        asked[TOKEN] = settings.read_token_file(token_file)
    except (OSError, UnicodeDecodeError):
        return  # settings.read says so
    del asked[TOKEN_FILE]


def _set_right(asked: _Asked, names: set[str]) -> None:
    for name in names:
        asked.pop(name, None)
        asked.pop(_PARTNERS.get(name, name), None)
        if name in _STAND_INS:
            asked[name] = _STAND_INS[name]
    if TOKEN_FILE in names or TOKEN in names:
        asked.pop(TOKEN_FILE, None)
        asked[TOKEN] = _STAND_INS[TOKEN]
    if names & _GATE:
        for name in _GATE:
            asked.pop(name, None)
        asked["DRIVER_ISOLATION"] = "off"


def _name(problem: str) -> str:
    return problem.partition(":")[0]


def look(reading: Reading, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Each wrong setting, then those that were set, then those that nobody reads."""
    for problem in reading.problems:
        name, _, what = problem.partition(": ")
        advice = "set it right where the container gets its environment (docs/operations.md, Settings)"
        yield failure("settings", name, what, advice, CheckExit.SETTINGS)
    given = {name: value for name, value in sorted(environ.items()) if value and name.startswith(_PREFIXES)}
    for name, value in given.items():
        if name in reading.known and name not in reading.wrong:
            yield Finding("settings", name, "***" if name == TOKEN else value)
    for name in given:
        if name not in reading.known:
            yield warning("settings", name, "is not read by anything", _did_you_mean(name, reading.known))
    if not reading.problems:
        yield Finding("settings", "all others", "have their defaults")


def _did_you_mean(name: str, known: frozenset[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean {close[0]}?" if close else "remove it"
