"""How every bundled program starts and ends.

What a program does not need before it knows that it can work is imported where it is used: each second of a start is
paid once for each run.
"""

import argparse
import signal
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from driver.exits import ProgramExit, meaning

if TYPE_CHECKING:
    from kinds.programs.surroundings import Surroundings

WATCHDOG_MARGIN: Final = 15.0
"""Seconds after the work time until a program that does not end is ended by its own watchdog."""


def hold_back_stop() -> float:
    """Block SIGTERM until the program can write down what it did (stoppable); when it started (time.monotonic)."""
    started = time.monotonic()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    return started


def arguments(module: str, description: str | None) -> argparse.ArgumentParser:
    """A parser for the options that all programs have: the model's wire, and its context where it is known."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--wire", required=True, choices=("responses", "chat", "messages"))
    parser.add_argument("--context-tokens", type=tokens, help="how much the model takes at once, where it is known")
    return parser


def around(options: argparse.Namespace, started: float) -> "Surroundings":
    """The surroundings of a program with these options. Raises InputsUnusable."""
    from dataclasses import replace

    from kinds.programs.surroundings import surroundings

    return replace(surroundings(options.wire, started), context_tokens=options.context_tokens)


def ended(name: str, work: Callable[[], int], wrong: type[Exception], problem: str) -> int:
    """The exit of `work`, told in one line, as is what keeps it from beginning.

    `wrong` is what it raises for inputs of another shape (exit 42), which are told as this problem.
    """
    from kinds.programs.errors import InputsUnusable
    from kinds.programs.progress import say

    try:
        exit = work()
    except wrong as error:
        say(f"{problem}: {error}")
        exit = ProgramExit.BAD_ENVELOPE
    except InputsUnusable as error:
        say(f"cannot start: {error}")
        exit = ProgramExit.NO_OUTPUT
    say(f"{name} ended with {exit:d}: {meaning(exit)}")
    return exit


def watched(seconds: float, run: Callable[[], Awaitable[int]], write: Callable[[int], None]) -> int:
    """Run the program's event loop. The watchdog ends one that is still there after its work time, and writes."""
    import anyio

    from kinds.programs.watchdog import Watchdog

    with Watchdog(seconds + WATCHDOG_MARGIN, ProgramExit.WATCHDOG, lambda: write(ProgramExit.WATCHDOG)):
        return anyio.run(run)


def tokens(value: str) -> int:
    """A number of tokens, above 0, as an option has it."""
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is no number of tokens")
    return number
