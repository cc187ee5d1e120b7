"""The composing program: `python -m kinds.programs.compose` in a workspace (docs/kinds.md, "REVIEW_COMPOSE").

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
    from kinds.programs.envelope import EnvelopeError

    parser = starting.arguments("kinds.programs.compose", __doc__)
    parser.add_argument("--task", required=True, help="the task envelope, relative to the workspace")
    options = parser.parse_args(argv)
    problem = "the task envelope is not valid"
    return starting.ended("composing", lambda: _compose(options, started), EnvelopeError, problem)


def _compose(options: argparse.Namespace, started: float) -> int:
    from kinds.programs.envelope import load

    envelope = load(Path.cwd(), options.task)
    around = starting.around(options, started)

    from kinds.programs.composition import Composition
    from kinds.programs.model import Waits

    composition = Composition(around, envelope, Waits(wall=time.time))
    return starting.watched(around.work_seconds, composition.run, composition.write)


if __name__ == "__main__":
    sys.exit(main())
