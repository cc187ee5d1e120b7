"""What is imported when: little before the first pull is sent, everything before a run is held."""

import json
import sys
from pathlib import Path

import anyio
import pytest

from driver.stub.server import running_stub
from tests.e2e.added_kinds import python_with_kind
from tests.e2e.driving import driving, scenario, stop_signal

pytestmark = pytest.mark.anyio

# Notes what is imported when the first bytes are sent over a socket.
NOTES = """
import json, sys
sent = []

def note(event, arguments):
    if event == "socket.sendmsg" and not sent:
        sent.append(event)
        with open({file!r}, "w") as file:
            json.dump(sorted(sys.modules), file)

sys.addaudithook(note)
"""

BEFORE_THE_FIRST_PULL = {
    "driver",
    "driver.__main__",
    "driver.clock",
    "driver.errors",
    "driver.exits",
    "driver.front",
    "driver.gateway",
    "driver.gateway.answer",
    "driver.gateway.pull",
    "driver.gateway.retry",
    "driver.handover",
    "driver.hardening",
    "driver.isolation",
    "driver.loading",
    "driver.log",
    "driver.loop",
    "driver.probe",
    "driver.process",
    "driver.process.children",
    "driver.process.orphans",
    "driver.process.tree",
    "driver.registry",
    "driver.secrets",
    "driver.settings",
    "driver.start",
    "driver.stop",
    "driver.values",
}
HEAVY = {"httpx", "httpcore", "pydantic", "pydantic_core", "annotated_types", "tenacity", "psutil", "kinds"}

LAST = """
    import gc, sys

    class Added:
        async def run(self, held):
            late = sys.modules["driver.door.server"].open_door
            held.log.info(
                "kind.started",
                collects=gc.isenabled(),
                late_is_frozen=all(thing is not late for thing in gc.get_objects()),
            )
            raise ZeroDivisionError
"""


def python_that(directory: Path, does: str) -> str:
    """A DRIVER_PYTHON that does something before it starts the driver."""
    first = directory / "first.py"
    first.write_text(does)
    start = f"import sys; exec(open({str(first)!r}).read()); sys.argv[1:] = []; import driver.__main__ as m; m.main()"
    interpreter = directory / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} -I -c "{start}"\n')
    interpreter.chmod(0o755)
    return str(interpreter)


async def test_before_the_first_pull(tmp_path: Path) -> None:
    """Of the driver the listed modules and its HTTP client are imported, and none of the heavy libraries."""
    noted = tmp_path / "modules.json"
    python = python_that(tmp_path, NOTES.format(file=str(noted)))
    async with running_stub(scenario()) as stub, driving(stub, tmp_path / "w", DRIVER_PYTHON=python) as driver:
        await driver.wait_event("run.ended", outcome="COMPLETED")
        stop_signal(driver)
        assert await driver.exit() == 0
    loaded = set(json.loads(noted.read_text()))
    own = {name for name in loaded if name.split(".")[0] == "driver" and not name.startswith("driver.http1")}
    assert own == BEFORE_THE_FIRST_PULL
    assert loaded & HEAVY == set()


@pytest.mark.parametrize("module", ["driver.door.server", "httpx", "driver.gateway.wire"])
async def test_a_part_that_cannot_be_imported(tmp_path: Path, module: str) -> None:
    """A late import that fails is an internal fault at the start, which names it, and not one of a run."""
    python = python_that(tmp_path, f"import sys; sys.modules[{module!r}] = None")
    async with running_stub(scenario()) as stub, driving(stub, tmp_path / "w", DRIVER_PYTHON=python) as driver:
        assert await driver.exit() == 70
    assert module in driver.named("driver.internal_fault")[0]["traceback"]
    assert driver.named("run.pulled") == []


async def test_a_part_that_cannot_be_imported_without_a_gateway(tmp_path: Path) -> None:
    """That is so too where no pull ever comes through."""
    python = python_that(tmp_path, "import sys; sys.modules['driver.held'] = None")
    async with (
        running_stub(scenario()) as stub,
        driving(stub, tmp_path / "w", DRIVER_PYTHON=python, HEPHAESTUS_GATEWAY_URL="http://127.0.0.1:1") as driver,
    ):
        with anyio.fail_after(30):
            assert await driver.exit() == 70


async def test_what_was_imported_is_frozen(tmp_path: Path) -> None:
    """Garbage is looked for again once all is imported, and what was imported late is left out of that too."""
    interpreter = python_with_kind(tmp_path, "ZZZ", LAST)
    async with (
        running_stub(scenario(run={"kind": "ZZZ"})) as stub,
        driving(stub, tmp_path / "w", DRIVER_PYTHON=str(interpreter)) as driver,
    ):
        started = await driver.wait_event("kind.started")
        stop_signal(driver)
        await driver.exit()
    assert started["collects"]
    assert started["late_is_frozen"]
