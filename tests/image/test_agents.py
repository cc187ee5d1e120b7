"""The image with an agent CLI, for each that IMAGE_AGENTS names: `make image-test IMAGE_AGENTS="codex pi"`."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from driver.stub.server import running_stub
from kinds.programs.agents.known import AGENTS
from tests.e2e.driving import driving, files_of, scenario
from tests.image.building import Builder
from tests.image.container import ANYBODY, MIB, Container

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("agent", os.environ.get("IMAGE_AGENTS", "").split())
async def test_review(workshop: Builder, tmp_path: Path, agent: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A review by the CLI is completed in the container, by anybody and without npm; all observations are there."""
    image = workshop.build(f"image-{agent}", AGENT=agent)
    assert image.config["Labels"]["agent-sandbox-driver.agent"] == agent
    root = workshop.mounted(f"image-{agent}")
    assert {path.name for path in (root / "opt/agent/bin").iterdir()} == {"node", agent}
    added = [member for member, _ in image.members() if member.name.startswith("opt/agent/")]
    assert [member.name for member in added if not member.issym() and member.mode & 0o6022] == []
    with capsys.disabled():
        stored = sum(member.size for member in added)
        print(f"\n{agent} adds {stored / MIB:.0f} MiB to the image")  # noqa: T201
    container = replace(Container(image, root, tmp_path / "containers", ANYBODY), memory=4096 * MIB)
    wire = AGENTS[agent].wires[0]
    async with running_stub(scenario(model={"wire": wire})) as stub:
        settings = {"DRIVER_PROGRAM_REVIEW": f"python -m kinds.programs.agents {agent} --wire {wire}"}
        async with driving(stub, tmp_path, command=container.command_line, **settings) as driver:
            with anyio.fail_after(240):
                ended = await driver.wait_event("run.ended")
            driver.process.send_signal(signal.SIGTERM)
            assert await driver.exit() == 0
        assert (ended["outcome"], ended["exit"]) == ("COMPLETED", 0)
        result = json.loads(files_of(stub)["out/result.json"])
    assert {each["state"] for each in result["coverage"]} == {"RECORDED"}
