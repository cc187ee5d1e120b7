"""The image run as a Pod: read-only, any user, no capability, PID 1, in cgroups of its own; the stub is outside."""

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from driver.stub.scenario import load_scenario
from driver.stub.server import running_stub
from tests.e2e.driving import Driver, closed_port, driving, files_of, scenario, shell
from tests.image.container import ANYBODY, MIB, Container

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600)]

# The user of the manifests, with the group of the volumes.
DEPLOYED = (1000, 1000, 1000)
HUNGRY = "python3 -c 'import time; held = [bytearray(1 << 20) for _ in range(400)]; time.sleep(60)'"


@pytest.mark.parametrize("user", [ANYBODY, DEPLOYED])
async def test_demo(container: Container, tmp_path: Path, user: tuple[int, ...]) -> None:
    """A review and its feedback are completed by a user that nobody knows, with nothing wrong on the way."""
    container = replace(container, user=user)
    async with running_stub(load_scenario("compose")) as stub:
        async with driving(stub, tmp_path, command=container.command_line) as driver:
            with anyio.fail_after(120):
                await stub.wait_ended()
            await stop(driver)
        assert [run.outcome for run in stub.state.runs] == ["COMPLETED", "COMPLETED"]
        assert "out/result.json" in files_of(stub)
        assert "out/feedback.json" in files_of(stub, "run-1-compose")
    assert [line for line in driver.events if line["level"] in ("warning", "error")] == []


async def test_over_its_memory(container: Container, tmp_path: Path) -> None:
    """The bound of programs comes from the container's own cgroup; one that is over it ends alone."""
    container = replace(container, memory=448 * MIB)
    async with running_stub(scenario()) as stub:
        settings = {"DRIVER_PROGRAM_REVIEW": shell(HUNGRY)}
        async with driving(stub, tmp_path, command=container.command_line, **settings) as driver:
            ended = await driver.wait_event("run.ended")
            await stop(driver)
    assert (ended["exit"], ended["reason"]) == (137, "memory")
    assert driver.named("program.over_limit")[0]["limit"] == (448 - 192) * MIB


async def test_check(container: Container, tmp_path: Path) -> None:
    """`entrypoint.sh check`, as an operator calls it, finds nothing wrong in the image."""
    async with running_stub(scenario()) as stub:
        with closed_port() as closed:
            settings = {
                "HEPHAESTUS_GATEWAY_URL": stub.url,
                "HEPHAESTUS_SANDBOX_TOKEN": stub.token,
                "DRIVER_ISOLATION_TARGET": f"127.0.0.1:{closed}",
            }
            command = container.running("entrypoint.sh", "check", "--json").command_line(settings)
            checked = await anyio.run_process(command, check=False)
    findings = json.loads(checked.stdout)["findings"]
    assert [line for line in findings if line["level"] != "ok"] == []
    assert checked.returncode == 0


@pytest.mark.parametrize("user", [ANYBODY, DEPLOYED])
def test_nothing_else_can_be_written(container: Container, user: tuple[int, ...]) -> None:
    """Even with a root that can be written, the user owns nothing there and may change nothing but what anybody may."""
    find = r"find / -xdev \( -type f -o -type d \) -writable 2>/dev/null; true"  # it may not look everywhere
    found = inside(replace(container, user=user, read_only=False), "sh", "-c", find)
    assert set(found.splitlines()) == {"/workspace", "/home/driver", "/tmp", "/var/tmp", "/run/lock"}


def test_read_only(container: Container) -> None:
    """Only the workspace, the home and the temporary directory take a file."""
    script = 'for place in / /etc /opt/driver /run /usr/local/bin /var/tmp /workspace "$HOME" /tmp; do'
    script += ' (: > "$place/new") 2>/dev/null && echo "$place"; done; true'
    assert inside(container, "sh", "-c", script).split() == ["/workspace", "/home/driver", "/tmp"]


def test_no_module_is_compiled(container: Container) -> None:
    """What is imported, the driver's and the standard library, is read as code and never as source."""
    told = inside(container, "python", "-I", "-v", "-c", "import driver.loop, kinds.review, httpx, pydantic")
    told_of = "# code object from "  # in quotes where it was read, without where it was compiled
    read = [line.removeprefix(told_of) for line in told.splitlines() if line.startswith(told_of)]
    assert len(read) > 200
    assert [path for path in read if "/__pycache__/" not in path] == []


def inside(container: Container, *command: str) -> str:
    """What a command prints in it; it has to succeed."""
    line = container.running(*command).command_line({})
    done = subprocess.run(line, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    return done.stdout


async def stop(driver: Driver) -> None:
    """runc hands a SIGTERM on to PID 1."""
    driver.process.send_signal(signal.SIGTERM)
    assert await driver.exit() == 0
