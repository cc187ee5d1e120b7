"""A program that is killed at any moment: the run ends with the signal, what was written is kept, nothing is left."""

from contextlib import suppress
from pathlib import Path

import anyio
import psutil
import pytest

from driver.stub.server import Stub, running_stub
from tests.e2e.driving import driving, files_of, gone, processes_below, scenario, shell, stop_signal
from tests.e2e.moments import moments

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600)]

MOMENTS = moments(10)
FILES = 40
# Leaves a process that has left its session, and writes one numbered file after the other.
WORK = f"""
(setsid sleep 600 &)
number=0
while [ $number -lt {FILES} ]; do number=$((number+1)); printf %s $number > out/$number; sleep 0.01; done
printf {{}} > out/result.json
sleep 0.1
"""
# Some of them come after the program has ended.
SPREAD = 1.1


async def test_killed(tmp_path: Path) -> None:
    """SIGKILL for the program or for its keeper: FAILED with 137, or COMPLETED where it was done; nothing is left."""
    workspace = tmp_path / "workspace"
    runs: list[dict[str, object]] = [{"attempts": 1} for _ in range(MOMENTS + 1)]
    async with (
        running_stub(scenario(run=runs)) as stub,
        gone(workspace),
        driving(stub, workspace, DRIVER_PROGRAM_REVIEW=shell(WORK)) as driver,
    ):
        unharmed = await driver.wait_event("program.ended", **{"run.id": "run-1", "program": "sh"})
        for number in range(MOMENTS):
            run = f"run-{number + 2}"
            with anyio.fail_after(60):
                started = await driver.wait_event("program.started", **{"run.id": run, "program": "sh"})
                await anyio.sleep(unharmed["seconds"] * SPREAD * number / MOMENTS)
                await kill(started["pid"], keeper=number % 2 == 1)
                ended = await driver.wait_event("run.ended", **{"run.id": run})
            (done,) = driver.named("program.ended", **{"run.id": run, "program": "sh"})
            whole = done["exit"] == 0
            expected = ("COMPLETED", 0, None) if whole else ("FAILED", 137, "ended by signal 9")
            assert (ended["outcome"], ended["exit"], ended.get("reason")) == expected
            assert kept_in_order(stub, run, whole=whole)
        stop_signal(driver)
        assert await driver.exit() == 0
        assert processes_below(workspace) == []
    assert [result.exit for result in stub.state.results][:2] == [0, 137]


async def kill(pid: int, *, keeper: bool) -> None:
    """SIGKILL to the keeper of that pid, or to the program that it starts; nothing where that has ended."""
    with suppress(psutil.NoSuchProcess):
        killed = [psutil.Process(pid)]
        while not keeper and not (killed := psutil.Process(pid).children()):  # noqa: ASYNC110 # the kernel tells nobody
            await anyio.sleep(0.001)
        for process in killed:
            process.kill()


def kept_in_order(stub: Stub, run: str, *, whole: bool) -> bool:
    """Whether the result holds each file up to the one at which the program was killed, and no other."""
    files = files_of(stub, run)
    kept = sorted(int(name.removeprefix("out/")) for name in files if name[4:].isdigit())
    # Only the last one may have been opened and not written yet.
    contents = [files[f"out/{number}"].decode() for number in kept]
    in_order = contents in ([str(number) for number in kept], [*map(str, kept[:-1]), ""])
    return kept == list(range(1, len(kept) + 1)) and in_order and (not whole or len(kept) == FILES)
