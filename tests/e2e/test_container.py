"""The driver as a cluster runs it: PID 1, any user, no HOME, no entry in passwd, a read-only root file system."""

import os
import pwd
import signal
import subprocess
from pathlib import Path

import anyio
import pytest

from driver.stub.server import running_stub
from tests.e2e.contained import contained, environment, members, needs_root, pid_1
from tests.e2e.driving import UNFINISHED, driving, files_of, scenario, shell

pytestmark = pytest.mark.anyio

ANYBODY = 1000730000


async def test_review(tmp_path: Path) -> None:
    """A whole review succeeds, nothing is wrong on the way, and the stop ends the container with 0."""
    needs_root()
    with pytest.raises(KeyError):
        pwd.getpwuid(ANYBODY)
    async with running_stub(scenario()) as stub:
        container = contained(tmp_path, uid=ANYBODY, gid=0)
        async with driving(stub, tmp_path, command=container, **environment({})) as driver:
            ended = await driver.wait_event("run.ended")
            os.kill(pid_1(driver.process.pid), signal.SIGTERM)
            assert await driver.exit() == 0
        assert (ended["outcome"], ended["exit"]) == ("COMPLETED", 0)
        assert "out/result.json" in files_of(stub)
    assert [line for line in driver.events if line["level"] in ("warning", "error")] == []


async def test_killed(tmp_path: Path) -> None:
    """A driver that is killed takes its programs with it: it is PID 1, and the kernel ends what is below."""
    needs_root()
    async with running_stub(scenario()) as stub:
        container = contained(tmp_path, uid=ANYBODY, gid=0)
        settings = environment({"DRIVER_PROGRAM_REVIEW": shell(f"setsid sleep 600 & {UNFINISHED}")})
        async with driving(stub, tmp_path, command=container, **settings) as driver:
            await driver.wait_event("program.output", text="ready")
            inside = pid_1(driver.process.pid)
            namespace = os.readlink(f"/proc/{inside}/ns/pid")
            # The driver, the program, and what it starts right before and right after its line.
            with anyio.fail_after(10):
                while len(members(namespace)) < 4:  # noqa: ASYNC110 # the kernel tells nobody
                    await anyio.sleep(0.01)
            os.kill(inside, signal.SIGKILL)
            with anyio.fail_after(5):
                await driver.process.wait()
    assert members(namespace) == []


async def test_orphans_of_others(tmp_path: Path) -> None:
    """Without a run too, PID 1 reaps what `kubectl exec` and its like leave behind."""
    needs_root()
    tables = {"run": {"kind": "MYSTERY", "retry_seconds": 600}, "sandbox": {"drives": ["MYSTERY"]}}
    async with running_stub(scenario(**tables)) as stub:
        container = contained(tmp_path, uid=ANYBODY, gid=0)
        async with driving(stub, tmp_path, command=container, **environment({})) as driver:
            await driver.wait_event("run.ended")
            inside = pid_1(driver.process.pid)
            enter = ["nsenter", "--target", str(inside), "--pid", "--mount", "sh", "-c"]
            subprocess.run([*enter, "sleep 0.2 >/dev/null & sleep 0.2 >/dev/null &"], check=True)
            children = Path(f"/proc/{inside}/task/{inside}/children")
            assert len(children.read_text().split()) == 2
            with anyio.fail_after(4):
                while children.read_text():  # noqa: ASYNC110 # the kernel tells nobody
                    await anyio.sleep(0.05)
