"""What ends a run in the middle: lost claims, deadlines, stops, kinds that fail; each with a real driver process."""

import json
import signal
from pathlib import Path

import pytest

from driver.stub.server import Stub, running_stub
from tests.e2e.added_kinds import python_with_kind
from tests.e2e.driving import (
    UNFINISHED,
    driving,
    files_of,
    open_port,
    processes_below,
    requests_after,
    scenario,
    shell,
    stop_signal,
)

pytestmark = pytest.mark.anyio


def moment_of(stub: Stub, event: str, **fields: object) -> int:
    """The number of the first journal entry of that event."""
    return stub.state.journal.named(event, **fields)[0].number


async def test_claim_lost_at_a_renewal(tmp_path: Path) -> None:
    """The program is ended at once, nothing more is written for the claim, and the next claim is worked on."""
    fault = {"at": "renew", "nth": 1, "what": "take_away"}
    workspace = tmp_path / "workspace"
    async with (
        running_stub(scenario(run={"lease_seconds": 9, "attempts": 2}, fault=[fault])) as stub,
        driving(stub, workspace, DRIVER_PROGRAM_REVIEW=shell(UNFINISHED)) as driver,
    ):
        lost = await driver.wait_event("claim.lost")
        assert lost["run.epoch"] == 1
        await driver.wait_event("program.output", text="ready", **{"run.epoch": 2})
        stop_signal(driver)
        assert await driver.exit() == 0
    assert driver.named("program.ended", reason="stopped", **{"run.epoch": 1})[0]["exit"] == 137
    assert driver.named("run.ended", **{"run.epoch": 2})[0]["outcome"] == "INTERRUPTED"
    after = moment_of(stub, "run.requeued", because="LOST")
    written = [
        entry
        for entry in stub.state.journal.entries
        if entry.number > after and entry.event == "request.received" and entry.fields.get("epoch") == 1
    ]
    assert written == []


async def test_token_rejected_in_mid_run(tmp_path: Path) -> None:
    """After a 401 the driver ends the program, writes nothing, pulls no more, and exits 0."""
    fault = {"at": "renew", "nth": 1, "what": "revoke"}
    workspace = tmp_path / "workspace"
    async with (
        running_stub(scenario(run={"lease_seconds": 3}, fault=[fault])) as stub,
        driving(stub, workspace, DRIVER_PROGRAM_REVIEW=shell(UNFINISHED)) as driver,
    ):
        assert await driver.exit() == 0
    assert driver.names()[-2:] == ["sandbox.taken_back", "driver.stopped"]
    after = moment_of(stub, "sandbox.taken_back")
    assert requests_after(stub, after, lambda path: True) == []
    assert stub.state.results.newest("run-1") is None
    assert processes_below(workspace) == []


async def test_deadline_in_mid_run(tmp_path: Path) -> None:
    """At the work deadline the program is stopped; what it had is uploaded with 124, and the run ended in time."""
    workspace = tmp_path / "workspace"
    async with (
        running_stub(scenario(run={"deadline_seconds": 12})) as stub,
        driving(stub, workspace, DRIVER_PROGRAM_REVIEW=shell(UNFINISHED)) as driver,
    ):
        ended = await driver.wait_event("run.ended")
        stop_signal(driver)
        assert await driver.exit() == 0
    assert (ended["outcome"], ended["exit"], ended["answer"]) == ("FAILED", 124, "ENDED")
    assert ended["reason"] == "stopped at the work deadline"
    assert files_of(stub)["out/result.json"] == b'{"partial":true}'
    result = stub.state.results.newest("run-1")
    assert result is not None
    assert result.exit == 124


async def test_deadline_moved_earlier_in_mid_run(tmp_path: Path) -> None:
    """A deadline that a renewal brings nearer is kept."""
    fault = {"at": "renew", "nth": 1, "what": "deadline_in", "seconds": 8}
    workspace = tmp_path / "workspace"
    async with (
        running_stub(scenario(run={"lease_seconds": 3}, fault=[fault])) as stub,
        driving(stub, workspace, DRIVER_PROGRAM_REVIEW=shell(UNFINISHED)) as driver,
    ):
        ended = await driver.wait_event("run.ended")
    assert (ended["outcome"], ended["exit"]) == ("FAILED", 124)
    assert files_of(stub)["out/result.json"] == b'{"partial":true}'


async def test_work_seconds_are_kept(tmp_path: Path) -> None:
    """Without a deadline the context's work time still bounds the program."""
    workspace = tmp_path / "workspace"
    async with (
        running_stub(scenario(run={"deadline_seconds": None, "work_seconds": 3})) as stub,
        driving(stub, workspace, DRIVER_PROGRAM_REVIEW=shell(UNFINISHED)) as driver,
    ):
        ended = await driver.wait_event("run.ended")
    assert (ended["outcome"], ended["exit"]) == ("FAILED", 124)
    assert files_of(stub)["out/result.json"] == b'{"partial":true}'


async def test_sigterm_in_mid_run(tmp_path: Path) -> None:
    """A stop ends the program with its grace, uploads what it had, ends the run INTERRUPTED, and exits 0."""
    script = "trap 'echo late > out/late.txt; exit 3' TERM; " + UNFINISHED
    workspace = tmp_path / "workspace"
    async with (
        running_stub(scenario()) as stub,
        driving(stub, workspace, DRIVER_PROGRAM_REVIEW=shell(script)) as driver,
    ):
        await driver.wait_event("program.output", text="ready")
        stop_signal(driver)
        assert await driver.exit() == 0
    ended = driver.named("run.ended")[0]
    assert (ended["outcome"], ended["exit"], ended["answer"]) == ("INTERRUPTED", 143, "ENDED")
    files = files_of(stub)
    assert (files["out/result.json"], files["out/late.txt"]) == (b'{"partial":true}', b"late\n")
    stopping = moment_of(stub, "request.answered", call="end")
    assert requests_after(stub, stopping, lambda path: path.endswith("/next")) == []
    assert [run.attempt for run in stub.state.runs] == [0]
    assert processes_below(workspace) == []


async def test_second_sigterm_skips_the_grace(tmp_path: Path) -> None:
    """A program that ignores SIGTERM is killed at the second one, and the run still ends INTERRUPTED."""
    workspace = tmp_path / "workspace"
    async with (
        running_stub(scenario()) as stub,
        driving(stub, workspace, DRIVER_PROGRAM_REVIEW=shell("trap '' TERM; " + UNFINISHED)) as driver,
    ):
        await driver.wait_event("program.output", text="ready")
        stop_signal(driver)
        await driver.wait_event("driver.stopping", hurried=False)
        stop_signal(driver, signal.SIGINT)
        assert await driver.exit() == 0
    assert driver.named("run.ended")[0]["outcome"] == "INTERRUPTED"
    assert driver.named("program.ended", reason="stopped")[0]["seconds"] < 10
    assert processes_below(workspace) == []


async def test_sigterm_while_idle(tmp_path: Path) -> None:
    """A driver without work stops at once."""
    workspace = tmp_path / "workspace"
    async with running_stub(scenario()) as stub, driving(stub, workspace) as driver:
        await driver.wait_event("run.ended")
        await stub.wait_for(lambda: len(stub.state.journal.named("request.received", call="next")) >= 2)
        stop_signal(driver)
        assert await driver.exit() == 0
    assert driver.names()[-2:] == ["driver.stopping", "driver.stopped"]


async def test_unknown_kind(tmp_path: Path) -> None:
    """A kind without a runner is handed back as UNSUPPORTED, and spends no attempt."""
    tables = {"run": {"kind": "MYSTERY", "retry_seconds": 600}, "sandbox": {"drives": ["MYSTERY"]}}
    async with running_stub(scenario(**tables)) as stub, driving(stub, tmp_path / "workspace") as driver:
        ended = await driver.wait_event("run.ended")
        stop_signal(driver)
        assert await driver.exit() == 0
    assert (ended["outcome"], ended["reason"]) == ("UNSUPPORTED", "no runner is installed for kind MYSTERY")
    run = next(iter(stub.state.runs))
    assert (run.state, run.attempt, run.epoch) == ("QUEUED", 0, 1)


BROKEN = """
    class Added:
        async def run(self, held):
            raise ZeroDivisionError(held.run.id)
"""


async def test_kind_that_raises(tmp_path: Path) -> None:
    """A fault of a kind ends the run FAILED with the reason, its traceback is logged, and three in a row exit 70."""
    interpreter = python_with_kind(tmp_path, "BROKEN", BROKEN)
    runs = {"kind": "BROKEN", "attempts": 9, "retry_seconds": 0}
    async with (
        running_stub(scenario(run=runs)) as stub,
        driving(stub, tmp_path / "workspace", DRIVER_PYTHON=str(interpreter)) as driver,
    ):
        assert await driver.exit() == 70
    ends = driver.named("run.ended")
    assert [(end["run.epoch"], end["outcome"]) for end in ends] == [(1, "FAILED"), (2, "FAILED"), (3, "FAILED")]
    assert ends[0]["reason"] == "internal fault: ZeroDivisionError('run-1')"
    assert "added_kind.py" in driver.named("run.internal_fault")[0]["traceback"]


async def test_work_erased(tmp_path: Path) -> None:
    """A 410 stops the kind and ends the run FAILED with the reason `erased`."""
    fault = {"at": "renew", "nth": 1, "what": "status", "status": 410}
    async with (
        running_stub(scenario(run={"lease_seconds": 3}, fault=[fault])) as stub,
        driving(stub, tmp_path / "workspace", DRIVER_PROGRAM_REVIEW=shell(UNFINISHED)) as driver,
    ):
        ended = await driver.wait_event("run.ended")
        stop_signal(driver)
        assert await driver.exit() == 0
    assert (ended["outcome"], ended["reason"]) == ("FAILED", "erased")
    assert stub.state.results.newest("run-1") is None


async def test_unisolated(tmp_path: Path) -> None:
    """Where the target stays open no kind starts: the run is handed on as UNISOLATED, and the driver exits 77."""
    workspace = tmp_path / "workspace"
    with open_port() as port:
        async with (
            running_stub(scenario()) as stub,
            driving(
                stub, workspace, DRIVER_ISOLATION_TARGET=f"127.0.0.1:{port}", DRIVER_ISOLATION_WINDOW="1"
            ) as driver,
        ):
            assert await driver.exit() == 77
    assert driver.named("sandbox.unisolated", level="error")
    assert driver.named("run.ended")[0]["outcome"] == "UNISOLATED"
    assert not driver.named("workspace.emptied")
    assert requests_after(stub, 0, lambda path: path.endswith(("/context", "/workspace", "/result"))) == []
    assert stub.state.journal.named("sandbox.taken_back")


async def test_result_whose_reply_was_lost(tmp_path: Path) -> None:
    """An upload that was stored before its reply was lost reads as success, and is stored once."""
    fault = {"at": "result", "nth": 1, "what": "lost_reply"}
    async with running_stub(scenario(fault=[fault])) as stub, driving(stub, tmp_path / "workspace") as driver:
        ended = await driver.wait_event("run.ended")
        stop_signal(driver)
        assert await driver.exit() == 0
    assert (ended["outcome"], ended["exit"]) == ("COMPLETED", 0)
    assert len(stub.state.journal.named("result.kept")) == 1
    assert len(driver.named("gateway.call_failed", call="result")) >= 1


async def test_wrong_settings(tmp_path: Path) -> None:
    """Several wrong settings are each told in a line of their own, and nothing is pulled."""
    async with (
        running_stub(scenario()) as stub,
        driving(stub, tmp_path / "workspace", DRIVER_STOP_GRACE="never", DRIVER_LOG_LEVEL="loud") as driver,
    ):
        assert await driver.exit() == 78
    assert [line["problem"] for line in driver.named("setting.wrong", level="error")] == [
        "DRIVER_STOP_GRACE: must be seconds from 1 to 3600",
        "DRIVER_LOG_LEVEL: must be one of debug, info, warning, error",
    ]
    assert requests_after(stub, 0, lambda path: True) == []
    assert json.dumps(driver.events).count(stub.token) == 0
