"""A wide review from end to end, through a door with few permits: 120 practices in 32 sessions."""

import json
from pathlib import Path

import pytest

from driver.stub.example import RANGE, make_example
from driver.stub.practices import load_practices
from driver.stub.repository import open_range
from driver.stub.server import running_stub
from driver.stub.workspaces import build_tree
from tests.e2e.driving import driving, files_of, scenario, stop_signal

pytestmark = pytest.mark.anyio

SIZES = (10, 9, *[4] * 17, *[3] * 11)


def wide_tree(tmp_path: Path) -> Path:
    """The workspace of a review of the example repository, with 120 practices in 30 areas."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    make_example(tmp_path / "example", scratch)
    tree = tmp_path / "tree"
    build_tree(open_range(tmp_path / "example", RANGE, scratch), load_practices(), tree, scratch)
    areas = [f"area {number}" for number, size in enumerate(SIZES) for _ in range(size)]
    practices = tree / "inputs/practices"
    index = [{"slug": f"p{number}", "area": area, "title": "It is so"} for number, area in enumerate(areas)]
    (practices / "index.json").write_text(json.dumps(index))
    for practice in index:
        (practices / f"{practice['slug']}.md").write_text("The change should be so.")
    return tree


async def test_sessions_run_as_the_permits_allow(tmp_path: Path) -> None:
    """All sessions are there at once and two calls at a time get through; what the full door refuses costs no try."""
    tree = wide_tree(tmp_path)
    few = {"DRIVER_MODEL_TRANSPORTS": "2", "DRIVER_MODEL_QUEUE": "4"}
    async with running_stub(scenario(workspace={"directory": str(tree)})) as stub:
        async with driving(stub, tmp_path / "workspace", **few) as driver:
            await driver.wait_event("run.ended")
            stop_signal(driver)
            assert await driver.exit() == 0
    assert driver.named("run.ended")[0]["outcome"] == "COMPLETED"
    files = files_of(stub)
    coverage = json.loads(files["out/result.json"])["coverage"]
    assert [one["practiceSlug"] for one in coverage] == [f"p{number}" for number in range(120)]
    assert {one["state"] for one in coverage} == {"RECORDED"}
    debug = json.loads(files["out/runner-debug.json"])
    assert len(debug["sessions"]) == 32
    assert max(len(session["practices"]) for session in debug["sessions"]) == 8
    assert {session["ended"] for session in debug["sessions"]} == {"done"}
    assert debug["heap"]["peakSessions"] == 32
    assert sum(session["retried"] for session in debug["sessions"]) > 0
    calls = json.loads(files["out/driver.json"])
    assert calls["refusals"].keys() == {"local_capacity"}
    assert (calls["brokenOff"], calls["abandoned"]) == (0, 0)
    assert max(line["active"] for line in driver.named("model.call.accepted")) == 2
