"""How the driver's process ends when something in it hangs, and what it does without an output."""

import os
import shlex
import signal
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from driver.stub.server import running_stub
from tests.e2e.added_kinds import python_with_kind
from tests.e2e.driving import ROOT, driving, requests_after, scenario, shell, stop_signal

pytestmark = pytest.mark.anyio

ADDED = {"kind": "ADDED", "lease_seconds": 4}

# A clean-up that never ends, in the event loop and in a thread.
HANGS = """
    import threading
    import anyio, anyio.to_thread

    class Added:
        async def run(self, held):
            held.log.info("kind.started")
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(threading.Event().wait)
"""
BLOCKS = """
    import threading

    class Added:
        async def run(self, held):
            held.log.info("kind.started")
            with held.work() as work:
                await __import__("anyio").sleep_forever()
            threading.Event().wait()
"""
EXITS = """
    import sys

    class Added:
        async def run(self, held):
            sys.exit(0)
"""


@pytest.mark.parametrize("source", [HANGS, BLOCKS])
async def test_hung_clean_up(tmp_path: Path, source: str) -> None:
    """Whatever hangs, a stop ends the process soon after its grace, says so, and the exit is 70."""
    interpreter = python_with_kind(tmp_path, "ADDED", source)
    async with (
        running_stub(scenario(run=ADDED)) as stub,
        driving(stub, tmp_path / "w", DRIVER_PYTHON=str(interpreter), DRIVER_STOP_GRACE="1") as driver,
    ):
        await driver.wait_event("kind.started")
        stop_signal(driver)
        with anyio.fail_after(10):
            assert await driver.exit() == 70
    assert driver.names()[-1] == "driver.cut_off"


async def test_hung_clean_up_in_a_hurry(tmp_path: Path) -> None:
    """The second signal shortens that too."""
    interpreter = python_with_kind(tmp_path, "ADDED", HANGS)
    async with (
        running_stub(scenario(run=ADDED)) as stub,
        driving(stub, tmp_path / "w", DRIVER_PYTHON=str(interpreter), DRIVER_STOP_GRACE="600") as driver,
    ):
        await driver.wait_event("kind.started")
        stop_signal(driver)
        await driver.wait_event("driver.stopping", hurried=False)
        stop_signal(driver)
        with anyio.fail_after(15):
            assert await driver.exit() == 70
    assert driver.names()[-1] == "driver.cut_off"


async def test_kind_that_exits(tmp_path: Path) -> None:
    """A kind that would end the process ends it as the fault that it is."""
    interpreter = python_with_kind(tmp_path, "ADDED", EXITS)
    async with (
        running_stub(scenario(run=ADDED)) as stub,
        driving(stub, tmp_path / "w", DRIVER_PYTHON=str(interpreter)) as driver,
    ):
        assert await driver.exit() == 70
    assert driver.names()[-2:] == ["driver.internal_fault", "driver.stopped"]


async def test_signals_until_the_end(tmp_path: Path) -> None:
    """However many signals come, up to the last moment, the exit is the driver's own."""
    async with running_stub(scenario()) as stub, driving(stub, tmp_path / "w") as driver:
        await driver.wait_event("run.ended")
        with anyio.fail_after(30):
            while driver.process.returncode is None:
                for number in (signal.SIGTERM, signal.SIGINT):
                    # Not the process's own method, which may reap it before who waits for its exit code.
                    with suppress(ProcessLookupError):
                        os.kill(driver.process.pid, number)
                await anyio.sleep(0.002)
        assert await driver.exit() == 0


async def test_without_standard_descriptors(tmp_path: Path) -> None:
    """With all of them closed the driver works as ever, and no line of its log goes anywhere else."""
    command = f"exec {shlex.quote(str(ROOT / 'entrypoint.sh'))} <&- >&- 2>&-"
    async with (
        running_stub(scenario()) as stub,
        driving(stub, tmp_path / "w", command=("sh", "-c", command), DRIVER_LOG_LEVEL="debug") as driver,
    ):
        with anyio.fail_after(30):
            await stub.wait_ended()
        stop_signal(driver)
        assert await driver.exit() == 0
    assert driver.events == []
    assert next(iter(stub.state.runs)).outcome == "COMPLETED"
    assert stub.state.journal.named("request.refused") == []


async def test_output_that_nobody_reads(tmp_path: Path) -> None:
    """A reader of the log that stalls holds up neither the run nor, for long, the end."""
    os.mkfifo(tmp_path / "log")
    stalled = os.open(tmp_path / "log", os.O_RDWR | os.O_NONBLOCK)
    entrypoint, log = shlex.quote(str(ROOT / "entrypoint.sh")), shlex.quote(str(tmp_path / "log"))
    command = ("sh", "-c", f"exec {entrypoint} > {log}")
    noisy = shell("yes 0123456789 | head -c 3000000; exit 1")
    async with (
        running_stub(scenario()) as stub,
        driving(stub, tmp_path / "w", command=command, DRIVER_PROGRAM_REVIEW=noisy) as driver,
    ):
        with anyio.fail_after(30):
            await stub.wait_ended()
        stop_signal(driver)
        with anyio.fail_after(10):
            assert await driver.exit() == 0
    os.close(stalled)
    assert [end.exit for _, _, end in stub.state.ends] == [1]


async def test_gateway_url_that_is_no_address(tmp_path: Path) -> None:
    """What only the client can tell to be wrong is a wrong setting all the same."""
    async with (
        running_stub(scenario()) as stub,
        driving(stub, tmp_path / "w", HEPHAESTUS_GATEWAY_URL="http://999.1.1.1") as driver,
    ):
        assert await driver.exit() == 78
    assert [line["problem"].split(":")[0] for line in driver.named("setting.wrong")] == ["HEPHAESTUS_GATEWAY_URL"]
    assert requests_after(stub, 0, lambda path: True) == []
