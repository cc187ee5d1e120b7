"""Kinds of other distributions: the example that docs/kinds.md shows, and kinds that cannot be used."""

from pathlib import Path

import anyio
import pytest

from driver.stub.server import running_stub
from tests.e2e.added_kinds import add_distribution, install, python_seeing
from tests.e2e.driving import ROOT, driving, files_of, scenario, stop_signal

pytestmark = pytest.mark.anyio

EXAMPLE = ROOT / "tests" / "example_kind"

WORKS = """
from driver.kind import Outcome

class Works:
    async def run(self, held):
        await held.workspace.prepare()
        await held.results.deliver(0)
        return Outcome("COMPLETED", exit=0)
"""


REASON = "leaves:Kind cannot be imported (SystemExit: 3)"


def python_with_broken_kinds(directory: Path) -> str:
    """An interpreter that sees one kind that works and three that cannot be used."""
    (directory / "leaves.py").write_text("raise SystemExit(3)")
    (directory / "works.py").write_text(WORKS)
    add_distribution(directory, "first", {"LEAVES": "leaves:Kind", "TWICE": "works:Works", "WORKS": "works:Works"})
    add_distribution(directory, "second", {"TWICE": "leaves:Kind", "GONE": "nowhere:Kind"})
    return str(python_seeing(directory))


async def test_example(tmp_path: Path) -> None:
    """The example is built and installed, its runs are pulled, and the greeting of the model is uploaded."""
    await anyio.to_thread.run_sync(install, tmp_path, EXAMPLE)
    tables = {"run": {"kind": "GREETING"}, "model": {"turns": [{"text": "Good morning!"}]}}
    async with (
        running_stub(scenario(**tables)) as stub,
        driving(stub, tmp_path / "w", DRIVER_PYTHON=str(python_seeing(tmp_path))) as driver,
    ):
        ended = await driver.wait_event("run.ended")
        stop_signal(driver)
        assert await driver.exit() == 0
    assert (ended["outcome"], ended["exit"]) == ("COMPLETED", 0)
    assert files_of(stub)["out/greeting.txt"] == b"Good morning!\n"
    assert driver.named("kind.broken") == []


def test_the_docs_show_the_example() -> None:
    """The code in docs/kinds.md is the example's."""
    docs = (ROOT / "docs" / "kinds.md").read_text("utf-8")
    source = (EXAMPLE / "greeting" / "kind.py").read_text("utf-8")
    points = (EXAMPLE / "pyproject.toml").read_text("utf-8").split("\n\n")[2]
    assert f"```toml\n{points}\n```" in docs
    assert f"```python\n{source.split(chr(10), 2)[2]}```" in docs


async def test_broken_kinds(tmp_path: Path) -> None:
    """Broken kinds are told of when the driver starts, by name, with the distribution and the reason; others work."""
    python = python_with_broken_kinds(tmp_path)
    async with (
        running_stub(scenario(run={"kind": "WORKS"})) as stub,
        driving(stub, tmp_path / "w", DRIVER_PYTHON=python) as driver,
    ):
        ended = await driver.wait_event("run.ended")
        stop_signal(driver)
        assert await driver.exit() == 0
    assert ended["outcome"] == "COMPLETED"
    assert {line["kind"]: (line["distribution"], line["reason"]) for line in driver.named("kind.broken")} == {
        "LEAVES": ("first", REASON),
        "GONE": ("second", "nowhere:Kind cannot be imported (ModuleNotFoundError: No module named 'nowhere')"),
        "TWICE": ("first, second", "it is registered twice: leaves:Kind by second, works:Works by first"),
    }


async def test_broken_kind_is_offered_once(tmp_path: Path) -> None:
    """The first pull may bring a run of a broken kind, which is handed back; no later pull names that kind."""
    python = python_with_broken_kinds(tmp_path)
    async with (
        running_stub(scenario(run={"kind": "LEAVES", "retry_seconds": 0})) as stub,
        driving(stub, tmp_path / "w", DRIVER_PYTHON=python) as driver,
    ):
        ended = await driver.wait_event("run.ended")
        await stub.wait_for(lambda: len(stub.state.journal.named("request.received", call="next")) >= 2)
        stop_signal(driver)
        assert await driver.exit() == 0
    reason = f"the runner that is installed for kind LEAVES cannot be used: {REASON}"
    assert (ended["outcome"], ended["reason"]) == ("UNSUPPORTED", reason)
    run = next(iter(stub.state.runs))
    assert (run.state, run.attempt, run.epoch) == ("QUEUED", 0, 1)
