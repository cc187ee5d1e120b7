"""The measuring program: `python -m kinds.programs.measure` in a workspace (docs/kinds.md, "REVIEW").

Its surroundings come from the driver: DRIVER_DOOR_URL, DRIVER_DOOR_KEY, DRIVER_MODEL, DRIVER_WORK_SECONDS.
What it ends with is in `driver.exits.ProgramExit`.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from driver.exits import ProgramExit, meaning

if TYPE_CHECKING:
    from kinds.programs.envelope import TaskEnvelope
    from kinds.programs.surroundings import Surroundings

_WATCHDOG_MARGIN: Final = 15.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit."""
    started = time.monotonic()
    # Until the program can write down what it measured; what comes before is a matter of milliseconds.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    from kinds.programs.envelope import EnvelopeError, load
    from kinds.programs.errors import InputsUnusable
    from kinds.programs.progress import say
    from kinds.programs.surroundings import surroundings

    options = _options(argv)
    try:
        envelope = load(Path.cwd(), options.task)
        around = surroundings(options.wire, started)
        exit = _measure(around, envelope, options.session_heap, options.session_size)
    except EnvelopeError as error:
        say(f"the task envelope is not valid: {error}")
        exit = ProgramExit.BAD_ENVELOPE
    except InputsUnusable as error:
        say(f"cannot start: {error}")
        exit = ProgramExit.NO_OUTPUT
    say(f"measuring ended with {exit:d}: {meaning(exit)}")
    return exit


def _measure(around: "Surroundings", envelope: "TaskEnvelope", heap_bytes: int, share_bytes: int) -> int:
    import anyio

    from kinds.programs.errors import InputsUnusable
    from kinds.programs.heap import SessionHeap
    from kinds.programs.measurement import Measurement
    from kinds.programs.model import Waits
    from kinds.programs.watchdog import Watchdog

    try:
        heap = SessionHeap(heap_bytes, share_bytes)
    except ValueError as error:
        raise InputsUnusable(str(error)) from error
    measurement = Measurement(around, envelope, heap, Waits(wall=time.time))
    seconds = around.work_seconds + _WATCHDOG_MARGIN
    with Watchdog(seconds, ProgramExit.WATCHDOG, lambda: measurement.report.write(ProgramExit.WATCHDOG)):
        return anyio.run(measurement.run)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kinds.programs.measure", description=__doc__)
    parser.add_argument("--task", required=True, help="the task envelope, relative to the workspace")
    parser.add_argument("--wire", required=True, choices=("responses", "chat", "messages"))
    parser.add_argument("--session-heap", required=True, type=int, help="bytes for all sessions together")
    parser.add_argument("--session-size", required=True, type=int, help="bytes that one session costs at least")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
