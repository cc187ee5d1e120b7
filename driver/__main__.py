"""The driver's start. Holds signals and hides the token before anything heavy is imported; see driver.start."""

import gc
import os
import sys
from typing import Final, NoReturn

from driver.handover import hold_stop_signals, take_token_out_of_environment

_STDERR: Final = 2
_USAGE_ERROR: Final = 64
_USAGE: Final = """\
usage: agent-sandbox-driver [--version | --help]
       agent-sandbox-driver check [--quick] [--json]

Runs the leased runs of one sandbox. It takes no arguments: its settings are environment variables, and
HEPHAESTUS_GATEWAY_URL and HEPHAESTUS_SANDBOX_TOKEN (or HEPHAESTUS_SANDBOX_TOKEN_FILE) are required.
docs/operations.md lists them all. `check` looks at what it needs here and says what is wrong; it pulls nothing.
`python -m driver.stub` is a gateway to try the driver with.
"""


def main() -> None:
    """Console entry point; ends the process with a code of driver.exits.DriverExit, or 64 for wrong arguments."""
    if sys.argv[1:2] == ["check"] and set(sys.argv[2:]) <= {"--quick", "--json"}:
        _check(sys.argv[2:])
    _answer_arguments(sys.argv[1:])
    hold_stop_signals()
    _open_standard_descriptors()
    from driver.errors import SettingsError
    from driver.exits import DriverExit

    try:
        take_token_out_of_environment()
        # To look for garbage among what is being imported would take a tenth of the time; driver.loading ends this.
        gc.disable()
        from driver.start import run

        code = run(os.environ)
    except SettingsError as error:
        from driver.start import tell_problems

        tell_problems(error.problems, os.environ)
        code = DriverExit.SETTINGS
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = DriverExit.INTERNAL
    # Not sys.exit: a worker thread that hangs in a file system must not keep a stopped driver alive.
    os._exit(code)


def _check(arguments: list[str]) -> NoReturn:
    """Look instead of running; ends the process with a code of driver.exits.CheckExit."""
    _open_standard_descriptors()
    from driver.errors import SettingsError
    from driver.handover import release_stop_signals

    release_stop_signals()  # entrypoint.sh blocks them
    problems: list[str] = []
    try:
        take_token_out_of_environment()
    except SettingsError as error:
        problems = error.problems
    from driver.check.command import run

    os._exit(run(os.environ, quick="--quick" in arguments, machine="--json" in arguments, problems=problems))


def _open_standard_descriptors() -> None:
    """Open those that are closed: else the next socket would get the log's number, and the log be sent to it."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(fd, True)
    os.close(fd)


def _answer_arguments(arguments: list[str]) -> None:
    """Answer a question and exit, or return when there is none."""
    if not arguments:
        return
    if arguments == ["--version"]:
        from driver import __version__

        sys.stdout.write(f"agent-sandbox-driver {__version__}\n")
    elif arguments in (["--help"], ["-h"]):
        sys.stdout.write(_USAGE)
    else:
        sys.stderr.write(_USAGE)
        sys.exit(_USAGE_ERROR)
    sys.exit(0)


if __name__ == "__main__":
    main()
