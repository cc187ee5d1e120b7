"""The measuring program: `python -m kinds.programs.measure` in a workspace (docs/kinds.md, "REVIEW").

Its surroundings come from the driver: DRIVER_DOOR_URL, DRIVER_DOOR_KEY, DRIVER_MODEL, DRIVER_WORK_SECONDS.
What it ends with is in `driver.exits.ProgramExit`.
"""

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from driver.exits import ProgramExit, meaning

if TYPE_CHECKING:
    from kinds.programs.envelope import TaskEnvelope
    from kinds.programs.measurement import Order

_WATCHDOG_MARGIN: Final = 15.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit."""
    started = time.monotonic()
    # Until the program can write down what it measured; what comes before is a matter of milliseconds.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    from kinds.programs.envelope import EnvelopeError, load
    from kinds.programs.errors import InputsUnusable
    from kinds.programs.progress import say

    options = _options(argv)
    workspace = Path.cwd()
    try:
        envelope = load(workspace, options.task)
        order = _order(workspace, envelope, options.wire, os.environ, started)
        exit = _measure(order, options.session_heap, options.session_size)
    except EnvelopeError as error:
        say(f"the task envelope is not valid: {error}")
        exit = ProgramExit.BAD_ENVELOPE
    except InputsUnusable as error:
        say(f"cannot start: {error}")
        exit = ProgramExit.NO_OUTPUT
    say(f"measuring ended with {exit:d}: {meaning(exit)}")
    return exit


def _measure(order: "Order", heap_bytes: int, share_bytes: int) -> int:
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
    measurement = Measurement(order, heap, Waits(wall=time.time))
    seconds = order.work_seconds + _WATCHDOG_MARGIN
    with Watchdog(seconds, ProgramExit.WATCHDOG, lambda: measurement.report.write(ProgramExit.WATCHDOG)):
        return anyio.run(measurement.run)


def _order(
    workspace: Path, envelope: "TaskEnvelope", wire: str, environment: Mapping[str, str], started: float
) -> "Order":
    from kinds.programs.errors import InputsUnusable
    from kinds.programs.exchange import Door
    from kinds.programs.measurement import Order

    model = environment.get("DRIVER_MODEL", "")
    if not model:
        raise InputsUnusable("DRIVER_MODEL must be set")
    door = Door.at(environment.get("DRIVER_DOOR_URL", ""), environment.get("DRIVER_DOOR_KEY", ""))
    seconds = _seconds(environment.get("DRIVER_WORK_SECONDS", ""))
    return Order(workspace, envelope, door, wire, model, seconds, started)


def _seconds(value: str) -> float:
    from kinds.programs.errors import InputsUnusable

    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputsUnusable("DRIVER_WORK_SECONDS must be a number of seconds above 0")
    return seconds


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kinds.programs.measure", description=__doc__)
    parser.add_argument("--task", required=True, help="the task envelope, relative to the workspace")
    parser.add_argument("--wire", required=True, choices=("responses", "chat", "messages"))
    parser.add_argument("--session-heap", required=True, type=int, help="bytes for all sessions together")
    parser.add_argument("--session-size", required=True, type=int, help="bytes that one session costs at least")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
