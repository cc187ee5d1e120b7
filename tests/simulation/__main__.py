"""`python -m tests.simulation --seeds 300` looks for a seed that breaks a rule; `--seed 17` tells the story of one."""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.simulation.history import trace
from tests.simulation.invariants import violations
from tests.simulation.world import Told, play

_BATCH = 20


def story(seed: int) -> tuple[Told, list[str]]:
    """What happened in the world of a seed, and the rules that it broke."""
    with tempfile.TemporaryDirectory(prefix="simulation-") as directory:
        told = play(seed, Path(directory))
    return told, violations(told)


def judged(seed: int) -> tuple[int, list[str]]:
    """A seed, and the rules that its world broke. A world that breaks itself is told as well, and the others go on."""
    try:
        return seed, story(seed)[1]
    except Exception:
        return seed, [traceback.format_exc()]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _one(seed: int) -> int:
    told, broken = story(seed)
    _say(trace(told.moments))
    for line in broken:
        _say(f"seed {seed}: {line}")
    return 1 if broken else 0


def _many(first: int, count: int) -> int:
    began, bad = time.monotonic(), 0
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for seed, broken in pool.imap_unordered(judged, range(first, first + count), _BATCH):
            bad += bool(broken)
            for line in broken:
                _say(f"seed {seed}: {line}")
    seconds = time.monotonic() - began
    _say(f"{count} seeds in {seconds:.1f} s, {count / seconds:.0f} a second; {bad} broke a rule")
    if bad:
        _say("make simulate SEED=n tells the story of one")
    return 1 if bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, help="play this one, and tell its story")
    parser.add_argument("--seeds", type=int, default=300, help="play this many")
    parser.add_argument("--first", type=int, default=1, help="the first of the many")
    given = parser.parse_args()
    return _many(given.first, given.seeds) if given.seed is None else _one(given.seed)


if __name__ == "__main__":
    sys.exit(main())
