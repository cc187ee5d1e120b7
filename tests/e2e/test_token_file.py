"""A token that comes from a file which stays: a secret that is mounted, say."""

import os
from pathlib import Path

import pytest

from driver.process import landlock
from driver.stub.server import running_stub
from tests.e2e.driving import driving, scenario, shell, stop_signal

pytestmark = pytest.mark.anyio


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
async def test_programs_cannot_read_it(tmp_path: Path) -> None:
    """Neither by its name nor by the one that a cluster's links lead to; what lies beside it can be read as ever."""
    versioned = tmp_path / "secret" / "..data"
    versioned.mkdir(parents=True)
    (versioned / "ca.crt").write_text("public\n")
    file = tmp_path / "secret" / "token"
    file.symlink_to("..data/token")
    script = f"cat {file} {versioned}/token; cat {versioned}/ca.crt; ls -l {versioned}; exit 9"
    async with running_stub(scenario(run={"attempts": 1})) as stub:
        (versioned / "token").write_text(stub.token)
        async with driving(
            stub,
            tmp_path / "workspace",
            DRIVER_PROGRAM_REVIEW=shell(script),
            HEPHAESTUS_SANDBOX_TOKEN="",
            HEPHAESTUS_SANDBOX_TOKEN_FILE=str(file),
        ) as driver:
            assert (await driver.wait_event("run.ended"))["exit"] == 9
            stop_signal(driver)
            assert await driver.exit() == 0
    printed = [line["text"] for line in driver.named("program.output")]
    assert sum("ermission denied" in line for line in printed) == 2
    assert "public" in printed
    assert not any(stub.token in line or "***" in line for line in printed)
    assert not [line for line in driver.named("token.exposed") if "TOKEN_FILE" in line["reason"]]
    assert os.access(file, os.R_OK)
