"""What each exit code means, for a run's program, for the driver itself and for its check.

docs/operations.md, "Exit codes of a run", "Exit codes of the driver" and "Exit codes of the check"; these follow
sysexits(3) where one fits.
"""

from enum import IntEnum
from typing import Final


class ProgramExit(IntEnum):
    """Exit codes of a run: the program's own, or what the driver says in its place."""

    COMPLETE = 0
    NO_OUTPUT = 1
    UNHANDLED = 2
    WATCHDOG = 3
    BAD_ENVELOPE = 42
    NOT_ACKNOWLEDGED = 43
    ADMISSION_UNREACHED = 75
    MODEL_UNANSWERED = 76
    NOT_ADMITTED = 77
    STOPPED_AT_DEADLINE = 124
    KILLED = 137
    TERMINATED = 143


class DriverExit(IntEnum):
    """Exit codes of the driver process."""

    OK = 0
    INTERNAL = 70
    UNISOLATED = 77
    SETTINGS = 78


class CheckExit(IntEnum):
    """Exit codes of `agent-sandbox-driver check`: of its worst finding; warnings leave it at 0."""

    OK = 0
    GATEWAY = 69
    MACHINE = 71
    UNISOLATED = 77
    SETTINGS = 78


_MEANINGS: Final[dict[int, str]] = {
    ProgramExit.COMPLETE: "complete",
    ProgramExit.NO_OUTPUT: "no complete output",
    ProgramExit.UNHANDLED: "unhandled error in the program",
    ProgramExit.WATCHDOG: "ended by the program's own watchdog",
    ProgramExit.BAD_ENVELOPE: "the task envelope is not valid",
    ProgramExit.NOT_ACKNOWLEDGED: "the result was not acknowledged in time",
    ProgramExit.ADMISSION_UNREACHED: "measured, but the observations never reached the gateway",
    ProgramExit.MODEL_UNANSWERED: "every model call went unanswered",
    ProgramExit.NOT_ADMITTED: "refused by admission",
    ProgramExit.STOPPED_AT_DEADLINE: "stopped at the work deadline",
}


def from_wait_status(returncode: int) -> int:
    """The exit code of a `subprocess` return code: a signal -n becomes 128 + n."""
    return 128 - returncode if returncode < 0 else returncode


def meaning(code: int) -> str:
    """One phrase for an exit code, for logs and for a run's reason."""
    if code in _MEANINGS:
        return _MEANINGS[code]
    if code > 128:
        return f"ended by signal {code - 128}"
    return f"exit code {code}"
