"""A gateway that is killed at any moment of a run and started again: no run is lost, and none is done twice."""

import io
import tarfile
import time
from pathlib import Path

import anyio
import pytest

from tests.e2e.driving import driving, gone, shell, stop_signal
from tests.e2e.gateway_process import gateway_process
from tests.e2e.moments import moments

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(900)]

MOMENTS = moments(6)
NUMBERS = "".join(f"{number}\n" for number in range(1, 60_001)).encode()
WORK = shell('sleep 0.3; seq 60000 > out/numbers; printf %s "$DRIVER_RUN_ID" > out/result.json; sleep 0.2')
# Long enough that a gateway is back well before a claim is in doubt, however busy the machine is.
RUN = "[[run]]\nlease_seconds = 12\nattempts = 3\nretry_seconds = 0\n"
# The moments go on past the end of the run, over the pull of the next one.
SPREAD = 1.2


async def test_killed_and_started_again(tmp_path: Path) -> None:
    """Each run is completed once, its result is stored once, and byte for byte what the program left."""
    workspace = tmp_path / "workspace"
    async with (
        gateway_process(tmp_path / "gateway", RUN * (MOMENTS + 1)) as gateway,
        gone(workspace),
        driving(gateway, workspace, DRIVER_PROGRAM_REVIEW=WORK) as driver,
    ):
        await driver.wait_event("run.pulled", **{"run.id": "run-1"})
        began = time.monotonic()
        await driver.wait_event("run.ended", **{"run.id": "run-1"})
        whole = time.monotonic() - began
        for number in range(MOMENTS):
            run = f"run-{number + 2}"
            with anyio.fail_after(60):
                await driver.wait_event("run.pulled", **{"run.id": run})
                await anyio.sleep(whole * SPREAD * number / MOMENTS)
                await gateway.kill()
                await gateway.start()
                await driver.wait_event("run.ended", **{"run.id": run})
        state = await gateway.state()
        stop_signal(driver)
        assert await driver.exit() == 0
        runs = [run["id"] for run in state["runs"]]
        assert runs == [f"run-{number}" for number in range(1, MOMENTS + 2)]
        assert [(end["run"], end["outcome"]) for end in state["ends"]] == [(run, "COMPLETED") for run in runs]
        assert [(result["run"], result["exit"]) for result in state["results"]] == [(run, 0) for run in runs]
        for run in runs:
            found = files_in(await gateway.result(run))
            assert (found["out/result.json"], found["out/numbers"]) == (run.encode(), NUMBERS)


def files_in(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {member.name: reader.read() for member in tar if (reader := tar.extractfile(member)) is not None}
