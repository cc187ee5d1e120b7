"""What the check finds: one line each, with what to do where something is wrong."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from driver.exits import CheckExit


class Level(Enum):
    """A driver works as it should; works with less than it should have; does not work."""

    OK = "ok"
    WARNING = "warn"
    FAILURE = "fail"


@dataclass(frozen=True)
class Finding:
    """One line of the check.

    `area` groups the lines, `name` says what was looked at, `found` what it is and means. `advice` says what to do,
    and only an OK has none. `exit` is what a FAILURE makes the check exit with.
    """

    area: str
    name: str
    found: str
    level: Level = Level.OK
    advice: str = ""
    exit: CheckExit = CheckExit.OK


def warning(area: str, name: str, found: str, advice: str) -> Finding:
    return Finding(area, name, found, Level.WARNING, advice)


def failure(area: str, name: str, found: str, advice: str, exit: CheckExit) -> Finding:
    return Finding(area, name, found, Level.FAILURE, advice, exit)


# A driver with wrong settings does not even begin; without a gateway it waits, and may still find one.
_WORST_FIRST: Final = (CheckExit.SETTINGS, CheckExit.UNISOLATED, CheckExit.MACHINE, CheckExit.GATEWAY)


def worst(findings: Iterable[Finding]) -> CheckExit:
    """The exit code of the check: warnings leave it at 0."""
    exits = {finding.exit for finding in findings if finding.level is Level.FAILURE}
    return next((exit for exit in _WORST_FIRST if exit in exits), CheckExit.OK)
