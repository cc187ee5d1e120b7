"""The conversation program: `python -m kinds.programs.digest` in a workspace (docs/kinds.md, "DIGEST and TURN").

Its surroundings come from the driver: DRIVER_DOOR_URL, DRIVER_DOOR_KEY, DRIVER_MODEL, DRIVER_WORK_SECONDS.
What it ends with is in `driver.exits.ProgramExit`.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from kinds.programs import starting


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit."""
    started = starting.hold_back_stop()
    from kinds.programs.captured import CapturedError

    parser = starting.arguments("kinds.programs.digest", __doc__)
    parser.add_argument("--facts", required=True, help="the captured facts, relative to the workspace")
    options = parser.parse_args(argv)
    problem = "the captured facts cannot be used"
    return starting.ended("the conversation", lambda: _converse(options, started), CapturedError, problem)


def _converse(options: argparse.Namespace, started: float) -> int:
    from kinds.programs.captured import load
    from kinds.programs.confine import Confined

    captured = load(Confined(Path.cwd()), options.facts)
    around = starting.around(options, started)

    from kinds.programs.conversing import Conversing
    from kinds.programs.model import Waits

    conversing = Conversing(around, captured, Waits(wall=time.time))
    return starting.watched(around.work_seconds, conversing.run, conversing.write)


if __name__ == "__main__":
    sys.exit(main())
