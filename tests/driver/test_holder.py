"""The ways a run ends, one by one (docs/design.md), on virtual time."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from driver.errors import KindFailed
from driver.front import After
from driver.gateway.wire import End
from driver.holder import LEAVING_SECONDS
from driver.kind import HeldRun, Outcome
from driver.values import Target
from tests.driver.holding import Bench, stay, succeed, work_on
from tests.driver.memory_gateway import Fault, afterwards, body, lost_reply, status, swallowed, unreachable
from tests.virtual_time import BACKEND

pytestmark = pytest.mark.anyio

WRITES = ("result", "end")
OTHER_CONTRACT = (
    b'{"contract": 2, "workspaceBytes": 0, "resultBytes": 1, "uploadSeconds": 1,'
    b'"workspaceDigest": "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"}'
)


@pytest.fixture
def anyio_backend() -> object:
    return BACKEND


@asynccontextmanager
async def holding(bench: Bench) -> AsyncIterator[list[After]]:
    """The run is held beside the block, which is left when that is over."""
    ends: list[After] = []
    async with anyio.create_task_group() as tasks:

        async def hold() -> None:
            ends.append(await bench.hold())

        tasks.start_soon(hold)
        yield ends


async def test_program_that_ended_with_0(tmp_path: Path) -> None:
    """The result is stored, then the run ends COMPLETED."""
    bench = Bench(tmp_path, succeed)
    assert await bench.hold() is After.PULL
    assert bench.gateway.exits == [0]
    assert bench.gateway.ends == [End(outcome="COMPLETED", exit=0)]
    assert [seen.call for seen in bench.gateway.seen] == ["next", "context", "runtime", "result", "end"]


async def test_program_that_failed(tmp_path: Path) -> None:
    """The result is stored with the program's exit, and the run ends FAILED with it."""

    async def fail(held: HeldRun) -> Outcome:
        await held.results.deliver(3)
        return Outcome("FAILED", exit=3, reason="watchdog")

    bench = Bench(tmp_path, fail)
    assert await bench.hold() is After.PULL
    assert bench.gateway.exits == [3]
    assert bench.gateway.ends == [End(outcome="FAILED", exit=3, reason="watchdog")]


@pytest.mark.parametrize(("tables", "at"), [({"work_seconds": 40}, 40.0), ({"deadline_seconds": 300}, 270.0)])
async def test_work_deadline(tmp_path: Path, tables: dict[str, float], at: float) -> None:
    """At the work deadline the work is stopped; the result still goes out with 124, and the run ends FAILED."""
    bench = Bench(tmp_path, work_on, run={"kind": "WORK", **tables})
    assert await bench.hold() is After.PULL
    assert bench.gateway.exits == [124]
    assert bench.gateway.ends == [End(outcome="FAILED", exit=124, reason="stopped: deadline")]
    assert bench.clock.now() == pytest.approx(at, abs=0.1)


async def test_sigterm(tmp_path: Path) -> None:
    """A stop ends the work; the result goes out with 143, and the run ends INTERRUPTED."""
    bench = Bench(tmp_path, work_on)
    async with holding(bench):
        await bench.clock.sleep(5)
        bench.stop.ask()
    assert bench.gateway.exits == [143]
    assert bench.gateway.ends == [End(outcome="INTERRUPTED", exit=143, reason="stopped: stopping")]
    assert bench.clock.now() == 5.0


@pytest.mark.parametrize("fault", [swallowed, status(503)])
async def test_second_sigterm(tmp_path: Path, fault: Fault) -> None:
    """The second signal cuts off whatever the first one has left to do; the run ends INTERRUPTED without it."""
    bench = Bench(tmp_path, work_on)
    bench.gateway.faults["result", 0] = fault
    async with holding(bench):
        await bench.clock.sleep(5)
        bench.stop.ask()
        await bench.clock.sleep(3)
        bench.stop.ask()
    assert [(end.outcome, end.exit) for end in bench.gateway.ends] == [("INTERRUPTED", None)]
    assert bench.gateway.exits == []
    assert bench.clock.now() == 8.0


async def test_unknown_kind(tmp_path: Path) -> None:
    """The run is handed back as UNSUPPORTED, before anything was asked about it."""
    bench = Bench(tmp_path, succeed, run={"kind": "MYSTERY"}, sandbox={"drives": ["MYSTERY"]})
    assert await bench.hold() is After.PULL
    assert bench.gateway.ends == [End(outcome="UNSUPPORTED", reason="no runner is installed for kind MYSTERY")]
    assert [seen.call for seen in bench.gateway.seen] == ["next", "end"]


async def test_a_probe_opens(tmp_path: Path) -> None:
    """The kind is killed, nothing is delivered, the run ends UNISOLATED, and the driver pulls no more."""
    with socket.socket() as target:
        target.bind(("127.0.0.1", 0))
        bench = Bench(tmp_path, work_on, target=Target("127.0.0.1", target.getsockname()[1]))
        async with holding(bench) as after:
            await bench.clock.sleep(20)
            target.listen()
    assert after == [After.UNISOLATED]
    assert [end.outcome for end in bench.gateway.ends] == ["UNISOLATED"]
    assert bench.gateway.calls("result") == []
    assert len(bench.named("sandbox.unisolated")) == 1


async def test_gate_that_fails(tmp_path: Path) -> None:
    """Where the gate fails no kind starts, and the run ends UNISOLATED."""
    with socket.socket() as target:
        target.bind(("127.0.0.1", 0))
        target.listen()
        bench = Bench(tmp_path, succeed, target=Target("127.0.0.1", target.getsockname()[1]))
        assert await bench.loop() == 77
    assert [seen.call for seen in bench.gateway.seen if seen.call != "renew"] == ["next", "end"]
    assert [end.outcome for end in bench.gateway.ends] == ["UNISOLATED"]


@pytest.mark.parametrize("call", ["renew", "context", "runtime", "result", "end"])
async def test_work_erased(tmp_path: Path, call: str) -> None:
    """Wherever the gateway says 410, the kind stops and the run ends FAILED with the reason `erased`."""
    bench = Bench(tmp_path, work_on if call == "renew" else succeed)
    bench.gateway.faults[call, 1] = status(410)
    assert await bench.hold() is After.PULL
    assert bench.gateway.ends == [End(outcome="FAILED", reason="erased")]
    assert bench.gateway.exits == ([0] if call == "end" else [])


@pytest.mark.parametrize("call", ["renew", "context", "runtime", "result", "end"])
async def test_claim_lost(tmp_path: Path, call: str) -> None:
    """Wherever the gateway says 409, nothing more is written for the claim, and the driver pulls again."""
    bench = Bench(tmp_path, work_on if call == "renew" else succeed)
    bench.gateway.faults[call, 1] = status(409)
    assert await bench.hold() is After.PULL
    assert bench.gateway.seen[-1].call == call
    assert bench.gateway.ends == []


@pytest.mark.parametrize("call", ["renew", "context", "runtime", "result", "end"])
async def test_token_rejected(tmp_path: Path, call: str) -> None:
    """Wherever the gateway says 401, nothing more is written, and the driver pulls no more."""
    bench = Bench(tmp_path, work_on if call == "renew" else succeed)
    bench.gateway.faults[call, 1] = status(401)
    assert await bench.hold() is After.TAKEN_BACK
    assert bench.gateway.seen[-1].call == call
    assert bench.gateway.ends == []


async def test_claim_in_doubt(tmp_path: Path) -> None:
    """With no good renewal for three quarters of a lease the kind is gone, and nothing is written."""
    bench = Bench(tmp_path, work_on)
    bench.gateway.faults["renew", 0] = unreachable
    assert await bench.hold() is After.PULL
    assert bench.clock.now() == 45.0
    assert bench.gateway.calls(*WRITES) == []
    assert bench.named("claim.lost")[0]["reason"] == "no renewal succeeded for three quarters of the lease"


async def test_deadline_passes_during_the_upload(tmp_path: Path) -> None:
    """Past the deadline nothing is written: an upload that still hangs is cut off, and no end is told."""
    bench = Bench(tmp_path, work_on, run={"kind": "WORK", "deadline_seconds": 100})
    bench.gateway.faults["result", 0] = swallowed
    assert await bench.hold() is After.PULL
    assert bench.clock.now() == pytest.approx(100.0, abs=0.1)
    assert bench.gateway.calls("end") == []
    assert bench.named("claim.lost")[0]["reason"] == "the deadline passed"


async def test_kind_that_raises(tmp_path: Path) -> None:
    """The run ends FAILED with the reason, and the loop hears of a fault."""

    async def raises(held: HeldRun) -> Outcome:
        raise ZeroDivisionError("mine")

    bench = Bench(tmp_path, raises)
    assert await bench.hold() is After.FAULT
    assert bench.gateway.ends == [End(outcome="FAILED", reason="internal fault: ZeroDivisionError('mine')")]
    assert "ZeroDivisionError" in bench.named("run.internal_fault")[0]["traceback"]


async def test_kind_that_fails_with_several_errors(tmp_path: Path) -> None:
    """What the kind says of its failure is told, and the fault beside it is neither lost nor forgiven."""

    async def raises(held: HeldRun) -> Outcome:
        raise ExceptionGroup("both", [ZeroDivisionError(), KindFailed(42, "the envelope is not valid")])

    bench = Bench(tmp_path, raises)
    assert await bench.hold() is After.FAULT
    assert bench.gateway.ends == [End(outcome="FAILED", exit=42, reason="the envelope is not valid")]
    assert "ZeroDivisionError" in bench.named("run.internal_fault")[0]["traceback"]


async def test_kind_that_raises_when_its_claim_is_lost(tmp_path: Path) -> None:
    """The loss decides, whatever the kind makes of its cancellation."""

    async def raises(held: HeldRun) -> Outcome:
        try:
            await anyio.sleep_forever()
        finally:
            raise KindFailed(1, "cancelled")  # a kind as bad as can be

    bench = Bench(tmp_path, raises)
    bench.gateway.faults["renew", 1] = status(409)
    assert await bench.hold() is After.PULL
    assert bench.gateway.calls(*WRITES) == []


@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        (
            Outcome("FAILED", exit=1, reason="cannot read \udcff"),
            End(outcome="FAILED", exit=1, reason="cannot read \\udcff"),
        ),
        (Outcome("FAILED", exit=1, reason="x" * 5000), End(outcome="FAILED", exit=1, reason="x" * 1999 + "…")),
    ],
)
async def test_reason_is_made_tellable(tmp_path: Path, outcome: Outcome, end: End) -> None:
    """A reason that is no Unicode, or is very long, does not keep the run from ending."""

    async def done(held: HeldRun) -> Outcome:
        return outcome

    bench = Bench(tmp_path, done)
    assert await bench.hold() is After.PULL
    assert bench.gateway.ends == [end]


@pytest.mark.parametrize("answer", [{"text": "\ud800"}, {"text": object()}])
async def test_answer_that_cannot_be_told(tmp_path: Path, answer: dict[str, object]) -> None:
    """A kind's answer that is no JSON is the kind's fault: the run ends FAILED."""

    async def done(held: HeldRun) -> Outcome:
        return Outcome("COMPLETED", exit=0, answer=answer)

    bench = Bench(tmp_path, done)
    assert await bench.hold() is After.FAULT
    assert [end.outcome for end in bench.gateway.ends] == ["FAILED"]


async def test_kind_that_ignores_the_stop(tmp_path: Path) -> None:
    """A kind that does not heed a stop is cut off while there is time left to end the run INTERRUPTED."""
    bench = Bench(tmp_path, stay)
    async with holding(bench):
        await bench.clock.sleep(5)
        bench.stop.ask()
    assert [end.outcome for end in bench.gateway.ends] == ["INTERRUPTED"]
    assert bench.clock.now() == 25.0


async def test_kind_that_ignores_the_work_deadline(tmp_path: Path) -> None:
    """Without a deadline a kind that does not heed the end of its work time is cut off in the end."""
    bench = Bench(tmp_path, stay, run={"kind": "WORK", "deadline_seconds": None, "work_seconds": 100})
    assert await bench.hold() is After.PULL
    reason = "the kind did not end after its work was stopped"
    assert bench.gateway.ends == [End(outcome="FAILED", exit=124, reason=reason)]
    assert bench.clock.now() == pytest.approx(100 + 900, abs=0.1)


async def test_kind_that_does_not_leave(tmp_path: Path) -> None:
    """A kind that cannot be cancelled stops the driver, whose process then ends it."""
    let_go = anyio.Event()

    async def shielded(held: HeldRun) -> Outcome:
        with anyio.CancelScope(shield=True):
            await let_go.wait()
        return Outcome("COMPLETED", exit=0)

    bench = Bench(tmp_path, shielded)
    bench.gateway.faults["renew", 1] = status(409)
    async with holding(bench):
        await bench.stop.wait_asked()
        assert bench.clock.now() == pytest.approx(bench.gateway.calls("renew")[0].at + LEAVING_SECONDS)
        let_go.set()
    assert bench.named("run.kind_stuck")
    assert bench.gateway.calls(*WRITES) == []


@pytest.mark.parametrize("call", ["context", "runtime"])
async def test_stop_during_a_call(tmp_path: Path, call: str) -> None:
    """A stop does not wait for an answer that does not come: the run ends INTERRUPTED in the grace."""

    async def prepare(held: HeldRun) -> Outcome:
        with held.work():
            await held.workspace.prepare()
        return Outcome("FAILED", exit=143)

    bench = Bench(tmp_path, prepare)
    bench.gateway.faults[call, 0] = swallowed
    async with holding(bench):
        await bench.clock.sleep(7)
        bench.stop.ask()
    assert [end.outcome for end in bench.gateway.ends] == ["INTERRUPTED"]
    assert bench.clock.now() == 7.0


async def test_stop_before_the_gate_is_decided(tmp_path: Path) -> None:
    """A run that waits for the gate is handed back at once."""
    bench = Bench(tmp_path, succeed)
    async with anyio.create_task_group() as tasks:

        async def hold() -> None:
            await bench.hold(gate=False)

        tasks.start_soon(hold)
        await bench.clock.sleep(70)
        bench.stop.ask()
    assert [end.outcome for end in bench.gateway.ends] == ["INTERRUPTED"]
    assert bench.clock.now() == 70.0
    assert len(bench.gateway.calls("renew")) >= 3


async def test_stop_after_the_program_has_failed(tmp_path: Path) -> None:
    """A stop during the upload does not turn a program's own failure into an interruption."""

    async def fail(held: HeldRun) -> Outcome:
        bench.stop.ask()
        await held.results.deliver(1)
        return Outcome("FAILED", exit=1, reason="no complete output")

    bench = Bench(tmp_path, fail)
    assert await bench.hold() is After.PULL
    assert bench.gateway.ends == [End(outcome="FAILED", exit=1, reason="no complete output")]


async def test_stop_after_the_work_deadline(tmp_path: Path) -> None:
    """A stop during the upload does not give back work that had had all of its time."""
    bench = Bench(tmp_path, work_on, run={"kind": "WORK", "work_seconds": 30})
    bench.gateway.faults["result", 1] = afterwards(bench.stop.ask)
    await bench.hold()
    assert bench.gateway.ends == [End(outcome="FAILED", exit=124, reason="stopped: deadline")]


def suspending(bench: Bench, seconds: float) -> Callable[[], None]:
    return lambda: bench.clock.suspend(seconds)


@pytest.mark.parametrize("call", ["context", "runtime", "result"])
async def test_suspended_past_the_lease(tmp_path: Path, call: str) -> None:
    """A driver that was suspended during a call writes nothing after it wakes."""
    bench = Bench(tmp_path, succeed, run={"kind": "WORK", "deadline_seconds": None})
    bench.gateway.faults[call, 1] = afterwards(suspending(bench, 3600))
    assert await bench.hold() is After.PULL
    assert bench.gateway.seen[-1].call == call
    assert bench.named("claim.lost") or bench.named("run.end_failed")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"[]", "runtime: the body: Input should be an object"),
        (b"{}", "runtime: contract: Field required"),
        (OTHER_CONTRACT, "runtime: contract: is 2, and this driver speaks 1"),
    ],
)
async def test_answer_that_breaks_the_contract(tmp_path: Path, answer: bytes, reason: str) -> None:
    """An answer that cannot be understood, or of another version, is told by its field; the exit is 43."""
    bench = Bench(tmp_path, succeed)
    bench.gateway.faults["runtime", 1] = body(answer)
    assert await bench.hold() is After.PULL
    assert bench.gateway.ends == [End(outcome="FAILED", exit=43, reason=f"the result was not acknowledged: {reason}")]


async def test_lost_reply_of_the_result(tmp_path: Path) -> None:
    """An upload that was kept before its reply was lost reads as success."""
    bench = Bench(tmp_path, succeed)
    bench.gateway.faults["result", 1] = lost_reply
    assert await bench.hold() is After.PULL
    assert bench.gateway.ends == [End(outcome="COMPLETED", exit=0)]
    assert len(bench.gateway.calls("result")) == 2
