"""A program of the driver's own user looks for the token everywhere, and does not find it."""

import base64
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from driver.stub.server import running_stub
from tests.e2e.contained import ENTRYPOINT, contained, environment, needs_root
from tests.e2e.driving import driving, files_of, scenario

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SEEKER = Path(__file__).with_name("programs") / "seeker.py"
DIRECTLY = (sys.executable, "-I", "-m", "driver")  # with the token in its environment, which it then replaces


def shifted_parts(token: str) -> list[str]:
    """Parts of the token and of its base64, each character one higher; the first is left out, as all begin so."""
    parts = [token[start : start + 16] for start in range(16, len(token) - 16, 16)]
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + token.encode()).decode()
        parts += [encoded[40:56], encoded[-24:-8]]
    return ["".join(chr(ord(character) + 1) for character in part) for part in parts]


@pytest.mark.parametrize(
    ("uid", "gid", "start"),
    [(0, 0, (ENTRYPOINT,)), (65534, 65534, (ENTRYPOINT,)), (1000730000, 0, DIRECTLY)],
    ids=["root", "nobody", "started-directly"],
)
async def test_not_found(tmp_path: Path, uid: int, gid: int, start: Sequence[str]) -> None:
    """Neither as root without capabilities nor as an ordinary user does it find any part of the token."""
    needs_root()
    async with running_stub(scenario()) as stub:
        program = shlex.join([sys.executable, "-I", str(SEEKER), *shifted_parts(stub.token)])
        container = contained(tmp_path, uid=uid, gid=gid, command=start)
        settings = environment({"DRIVER_PROGRAM_REVIEW": program})
        async with driving(stub, tmp_path, command=container, **settings) as driver:
            ended = await driver.wait_event("run.ended")
        assert (ended["outcome"], ended["exit"]) == ("COMPLETED", 0), driver.named("program.output")
        seen = json.loads(files_of(stub)["out/result.json"])
    assert seen["control"] == ["files", "proc environ", "proc mem"]
    assert seen["found"] == []
    assert driver.named("token.exposed") == []


async def test_where_the_kernel_does_not_protect_it(tmp_path: Path) -> None:
    """As root with all capabilities the driver says so once, before it pulls, and says what to set."""
    needs_root()
    async with running_stub(scenario()) as stub, driving(stub, tmp_path / "workspace") as driver:
        await driver.wait_event("run.ended")
    (exposed,) = driver.named("token.exposed")
    assert driver.names().index("token.exposed") < driver.names().index("run.pulled")
    assert exposed["level"] == "warning"
    assert "CAP_SYS_PTRACE" in exposed["reason"]
    assert exposed["reason"].endswith("run the sandbox as a user other than root, with all capabilities dropped")
