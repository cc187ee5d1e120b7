"""A review of 120 practices in 30 areas: bad weather changes nothing, and no end loses what was recorded."""

import json
import signal
import subprocess
import time
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from kinds.programs.envelope import load
from kinds.programs.exchange import Door, Patience
from kinds.programs.heap import HeapStatistics, SessionHeap
from kinds.programs.measurement import Measurement
from kinds.programs.model import Waits
from kinds.programs.surroundings import Surroundings
from tests.programs.fake_door import KEY, MODEL, command, fake_door, surroundings
from tests.programs.weather import Weather, expected, states, wide_workspace

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
SESSIONS = 32
PATIENCE = Patience(first_byte=3, gap=3)


async def quickly(seconds: float) -> None:
    await anyio.sleep(seconds / 50)


async def review(
    root: Path, weather: Weather, wire: str, *, side_by_side: int = 85
) -> tuple[list[Any], dict[str, str], HeapStatistics]:
    """Measure in this process, with little patience: what was posted, what became of each practice, and the heap."""
    workspace = wide_workspace(root)
    heap = SessionHeap(side_by_side * 3 * MIB, 3 * MIB)
    async with fake_door(weather.script) as door:
        around = Surroundings(workspace, Door.at(door.url, KEY), wire, MODEL, 120, time.monotonic())
        waits = Waits(time.time, PATIENCE, Random(1), quickly)
        exit = await Measurement(around, load(workspace, "task.json"), heap, waits).run()
    assert exit == 0
    assert door.most_open <= min(side_by_side, SESSIONS)
    assert heap.statistics().used == 0
    return door.posted, states((workspace / "out/result.json").read_text()), heap.statistics()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "wire"), [(1, "responses"), (2, "chat"), (3, "messages"), (4, "chat"), (5, "responses")]
)
async def test_the_weather_changes_nothing(tmp_path: Path, seed: int, wire: str) -> None:
    """Delays, 429s, cuts and stalls: every practice ends as it does in sunshine, with the same observations."""
    weather = Weather(seed, stalls=True)
    calm, _, _ = await review(tmp_path / "calm", Weather(None, stalls=False), wire)
    posted, ended, heap = await review(tmp_path / "weather", weather, wire)
    assert ended == expected()
    assert posted == calm
    assert heap.peak_sessions == SESSIONS
    assert {"busy", "busy at once", "broken", "cut", "end", "stall"} <= weather.failures.keys()


async def test_sessions_run_as_the_heap_allows(tmp_path: Path) -> None:
    """With room for five there are five at a time, and in the end the same observations."""
    posted, ended, heap = await review(tmp_path / "five", Weather(7, stalls=False), "responses", side_by_side=5)
    assert heap.peak_sessions == 5
    assert ended == expected()
    calm, _, _ = await review(tmp_path / "all", Weather(None, stalls=False), "responses")
    assert posted == calm


async def test_the_real_program_in_bad_weather(tmp_path: Path) -> None:
    """The same as a process of its own, with its own waits; its peak memory is printed."""
    workspace = wide_workspace(tmp_path)
    peak = 0
    async with fake_door(Weather(11, stalls=False).script) as door:
        async with await anyio.open_process(
            command(), cwd=workspace, env=surroundings(door), stdout=subprocess.DEVNULL
        ) as process:
            while not door.posted and process.returncode is None:
                peak = _peak(process.pid) or peak
                await anyio.sleep(0.05)
            exit = await process.wait()
    print(f"120 practices in {SESSIONS} sessions: peak memory {peak / 1024:.1f} MiB")  # noqa: T201
    assert exit == 0
    assert states((workspace / "out/result.json").read_text()) == expected()
    assert 0 < peak < 128 * 1024


def _peak(pid: int) -> int:
    """The most that a process held, in KiB; 0 when it has ended."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0


MOMENTS = [Random(20).choice(range(1, 110)) for _ in range(1)] + Random(21).sample(range(1, 150), 19)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize(
    "moment", [MOMENTS[0], *(pytest.param(moment, marks=pytest.mark.slow) for moment in MOMENTS[1:])]
)
async def test_killed_at_any_moment(tmp_path: Path, moment: int, how: signal.Signals) -> None:
    """However it ends, all files are complete, and what the model was told is recorded is there.

    What a killed program had recorded and not told yet may be there or not.
    """
    reached = anyio.Event()
    weather = Weather(moment, stalls=False, until=moment, reached=reached.set)
    workspace = wide_workspace(tmp_path)
    async with fake_door(weather.script) as door:
        async with await anyio.open_process(
            command(), cwd=workspace, env=surroundings(door), stdout=subprocess.DEVNULL
        ) as process:
            await reached.wait()
            await anyio.sleep(Random(moment).uniform(0, 0.05))
            process.send_signal(how)
            exit = await process.wait()
    assert exit == (143 if how == signal.SIGTERM else -9)
    result = (workspace / "out/result.json").read_text()
    ended = states(result)
    assert len(ended) == 120
    assert {slug for slug in weather.told if ended[slug] != "RECORDED"} == set()
    usage = json.loads((workspace / "out/usage.json").read_text())
    debug = json.loads((workspace / "out/runner-debug.json").read_text())
    if how == signal.SIGTERM:
        assert debug["exit"] == 143
        assert usage["models"][MODEL]["calls"] >= moment
        assert "the program was asked to stop" in ended.values()


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.1, 0.2, 0.4])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_killed_while_it_starts(tmp_path: Path, seconds: float, how: signal.Signals) -> None:
    """Before the first call there may be no files yet; those that are there are complete."""
    workspace = wide_workspace(tmp_path)
    async with fake_door(Weather(None, stalls=False).script, stall_from_turn=0) as door:
        async with await anyio.open_process(
            command(), cwd=workspace, env=surroundings(door), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            await anyio.sleep(seconds)
            process.send_signal(how)
            exit = await process.wait()
    files = {path.name: json.loads(path.read_text()) for path in (workspace / "out").glob("*.json")}
    assert exit in ((143, -15) if how == signal.SIGTERM else (-9,))
    if exit == 143:
        assert files["runner-debug.json"]["exit"] == 143
    if door.calls:
        assert len(files["result.json"]["coverage"]) == 120
