"""The measuring program: `python -m kinds.programs.measure` in a workspace (docs/kinds.md, "REVIEW").

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

    parser = starting.arguments("kinds.programs.measure", __doc__)
    parser.add_argument("--task", required=True, help="the task envelope, relative to the workspace")
    parser.add_argument("--session-heap", required=True, type=int, help="bytes for all sessions together")
    parser.add_argument("--session-size", required=True, type=int, help="bytes that one session costs at least")
    options = parser.parse_args(argv)
    problem = "the task envelope is not valid"
    return starting.ended("measuring", lambda: _measure(options, started), EnvelopeError, problem)


def _measure(options: argparse.Namespace, started: float) -> int:
    from kinds.programs.envelope import load

    envelope = load(Path.cwd(), options.task)
    around = starting.around(options, started)

    from kinds.programs.errors import InputsUnusable
    from kinds.programs.heap import SessionHeap
    from kinds.programs.measurement import Measurement
    from kinds.programs.model import Waits

    try:
        heap = SessionHeap(options.session_heap, options.session_size)
    except ValueError as error:
        raise InputsUnusable(str(error)) from error
    measurement = Measurement(around, envelope, heap, Waits(wall=time.time))
    return starting.watched(around.work_seconds, measurement.run, measurement.report.write)


if __name__ == "__main__":
    sys.exit(main())
