"""85 sessions alive at once in the real measuring program, in a session heap of 256 MiB."""

import asyncio
from pathlib import Path

import pytest

from bench.sessions import SESSIONS, hold

HEAP_MIB = 256
TRANSCRIPT_MIB = 2.5


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_85_sessions_fit_into_the_heap(tmp_path: Path) -> None:
    """With 85 calls open, each with 2.5 MiB of transcript, the program holds no more than the heap over its base.

    The base is the same program with one session at its first call.
    """
    base = asyncio.run(hold(tmp_path / "base", 1, 0))
    alive = asyncio.run(hold(tmp_path / "alive", SESSIONS, 2))
    print(f"base {base['resident']:.1f} MiB, alive {alive['resident']:.1f} MiB, peak {alive['peak']:.1f} MiB")  # noqa: T201
    assert (base["exit"], alive["exit"]) == (0, 0)
    assert (alive["sessions"], alive["heap_left"]) == (85, 0)
    assert alive["smallest_mib"] >= TRANSCRIPT_MIB
    assert alive["peak"] <= HEAP_MIB + base["resident"]
    assert alive["resident"] - base["resident"] <= 1.25 * alive["transcript_mib"]


def test_a_few_sessions_cost_what_they_hold(tmp_path: Path) -> None:
    """What holds for 85 holds for eight: one MiB of transcript costs at most 1.25 MiB, and some for the eight calls."""
    base = asyncio.run(hold(tmp_path / "base", 1, 0))
    alive = asyncio.run(hold(tmp_path / "alive", 8, 2))
    assert (alive["exit"], alive["sessions"], alive["heap_left"]) == (0, 8, 0)
    assert alive["resident"] - base["resident"] <= 1.25 * alive["transcript_mib"] + 8
