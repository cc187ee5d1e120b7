"""The gate: window, positive control, the probe of each run, and the watch. Real sockets, a clock of our own."""

import json
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from driver.errors import Unisolated
from driver.isolation import IsolationGate, Step, decide
from driver.log import Log, render_json
from driver.probe import Probe, Verdict
from driver.settings import IsolationSettings
from driver.values import Target

pytestmark = pytest.mark.anyio

LOOPBACK = "127.0.0.1"


class SteppingClock:
    """A clock that a sleep moves on at once. What is planned for a moment is done when the clock gets there."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._plan: list[tuple[float, Callable[[], object]]] = []

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        self._plan.append((1000.0 + seconds, action))

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return 0.0

    async def sleep_until(self, moment: float) -> None:
        await anyio.lowlevel.checkpoint()
        self._now = round(max(self._now, moment), 6)
        for due in [item for item in self._plan if item[0] <= self._now]:
            self._plan.remove(due)
            due[1]()

    async def sleep(self, seconds: float) -> None:
        await self.sleep_until(self._now + seconds)


class StandingClock(SteppingClock):
    """A clock that stands still: what waits for it waits for ever."""

    async def sleep_until(self, moment: float) -> None:
        await anyio.sleep_forever()


class Scene:
    """A gate before one loopback target, the clock, and what was logged."""

    def __init__(self, server: socket.socket | None, clock: SteppingClock, *, open_timeout: float = 5.0) -> None:
        self.server = server
        self.clock = clock
        self.answered = anyio.Event()
        self.lines: list[dict[str, Any]] = []
        self.target = Target(LOOPBACK, server.getsockname()[1]) if server else None
        self.gate = IsolationGate(
            IsolationSettings(target=self.target, open_timeout=open_timeout, window=10.0),
            clock=clock,
            log=Log(
                lambda line: self.lines.append(json.loads(line)), render=render_json, level="debug", wall=clock.wall
            ),
            answered=self.answered,
            started=clock.now(),
        )

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]

    def open(self) -> None:
        assert self.server is not None
        self.server.listen(200)

    def shut(self) -> None:
        """The port stays ours and refuses from now on."""
        assert self.server is not None
        self.server.shutdown(socket.SHUT_RDWR)


@contextmanager
def scene(*, clock: SteppingClock | None = None, is_open: bool = False, answered: bool = True) -> Iterator[Scene]:
    with socket.socket() as server:
        server.bind((LOOPBACK, 0))
        made = Scene(server, clock or SteppingClock())
        if is_open:
            made.open()
        if answered:
            made.answered.set()
        yield made


@pytest.mark.parametrize(
    ("verdict", "controlled", "overdue", "expected"),
    [
        (Verdict.OPEN, False, False, Step.STILL_OPEN),
        (Verdict.OPEN, True, False, Step.STILL_OPEN),
        (Verdict.OPEN, False, True, Step.UNISOLATED),
        (Verdict.OPEN, True, True, Step.UNISOLATED),
        (Verdict.CLOSED, False, False, Step.NO_NETWORK),
        (Verdict.CLOSED, False, True, Step.NO_NETWORK),
        (Verdict.CLOSED, True, False, Step.HOLDS),
        (Verdict.CLOSED, True, True, Step.HOLDS),
        (Verdict.LOCAL_FAULT, True, False, Step.NO_PROBE),
        (Verdict.LOCAL_FAULT, True, True, Step.NO_PROBE),
    ],
)
def test_decide(verdict: Verdict, controlled: bool, overdue: bool, expected: Step) -> None:
    """Only a closed probe that began after the gateway's answer proves the policy; only a late open one refutes it."""
    assert decide(Probe(verdict, "any"), controlled=controlled, overdue=overdue) is expected


async def test_passes_on_the_first_closed_probe() -> None:
    """With the gateway up and the target closed, one probe is enough, and the log says how."""
    with scene() as s:
        await s.gate.pass_gate()
    (passed,) = s.logged("gate.passed")
    assert (passed["how"], passed["probes"], passed["seconds"]) == ("refused", 1, 0.0)
    (probed,) = s.logged("gate.probed")
    assert (probed["level"], probed["verdict"], probed["target"]) == ("debug", "closed", str(s.target))


async def test_closed_without_a_gateway_proves_nothing() -> None:
    """While the gateway has not answered, closed probes do not count: it goes on trying, long past the window."""
    with scene(answered=False) as s:
        s.clock.at(60.0, s.answered.set)
        await s.gate.pass_gate()
    (passed,) = s.logged("gate.passed")
    assert passed["seconds"] == 60.0
    assert passed["probes"] == 61  # one a second, and the one that counts
    waiting = s.logged("gate.waiting")
    assert [line["seconds"] for line in waiting] == [2.0, 12.0, 22.0, 32.0, 42.0, 52.0]
    assert "no network yet" in waiting[0]["why"]


async def test_first_answer_wakes_the_gate() -> None:
    """The gate probes again the moment the gateway answers, not at the next second."""
    with scene(clock=StandingClock(), answered=False) as s:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(s.gate.pass_gate)
            await anyio.wait_all_tasks_blocked()
            assert s.logged("gate.passed") == []
            s.answered.set()
    assert s.logged("gate.passed")[0]["probes"] == 2


async def test_probe_that_began_before_the_answer_does_not_count() -> None:
    """An answer that arrives while a probe is under way does not make that probe a proof."""
    with socket.create_server((LOOPBACK, 0), backlog=0) as server, socket.create_connection(server.getsockname()):
        s = Scene(server, SteppingClock(), open_timeout=0.1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(s.gate.pass_gate)
            await anyio.wait_all_tasks_blocked()
            s.answered.set()
    (passed,) = s.logged("gate.passed")
    assert (passed["how"], passed["probes"]) == ("timed_out", 2)


async def test_policy_that_comes_late() -> None:
    """A target that opens is probed every 0.1 s, and the gate passes once it is closed."""
    with scene(is_open=True) as s:
        s.clock.at(3.0, s.shut)
        await s.gate.pass_gate()
    (passed,) = s.logged("gate.passed")
    assert (passed["how"], passed["probes"], passed["seconds"]) == ("refused", 31, 3.0)
    (waiting,) = s.logged("gate.waiting")
    assert (waiting["how"], waiting["seconds"]) == ("opened", 2.0)


@pytest.mark.parametrize("answered", [True, False])
async def test_policy_that_never_comes(answered: bool) -> None:
    """A probe that still opens 10 s after the driver started is Unisolated, gateway or not; the text helps."""
    with scene(is_open=True, answered=answered) as s:
        with pytest.raises(Unisolated) as caught:
            await s.gate.pass_gate()
        assert s.clock.now() == 1010.0
    assert len(s.logged("gate.probed")) == 101
    assert str(caught.value).startswith(f"{s.target} opens (opened) 10.0 s after the driver started")
    assert "API server sits on the Pod's own node" in str(caught.value)
    assert s.logged("gate.passed") == []


async def test_network_that_comes_up_open() -> None:
    """Closed for want of a network, then open after the window: Unisolated at the first probe that opens."""
    with scene(answered=False) as s:
        s.clock.at(20.0, s.open)
        with pytest.raises(Unisolated):
            await s.gate.pass_gate()
        assert s.clock.now() == 1020.0


async def test_local_fault_is_no_proof() -> None:
    """Out of file descriptors the gate neither passes nor fails; it waits, and says why."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def restore() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    with scene() as s:
        s.clock.at(30.0, restore)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            await s.gate.pass_gate()
        finally:
            restore()
    assert s.logged("gate.passed")[0]["seconds"] == 30.0
    assert {line["how"] for line in s.logged("gate.waiting")} == {"EMFILE"}


@pytest.mark.parametrize("is_open", [False, True])
async def test_others_wait_for_the_decision(is_open: bool) -> None:
    """Whoever waits for the gate gets its decision, before it was made and after."""
    raised: list[str] = []
    with scene(is_open=is_open) as s:

        async def wait() -> None:
            try:
                await s.gate.wait_passed()
            except Unisolated as error:
                raised.append(str(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert (s.gate.passed, s.gate.failed) == (False, False)
            if is_open:
                with pytest.raises(Unisolated):
                    await s.gate.pass_gate()
            else:
                await s.gate.pass_gate()
        await wait()
        assert (s.gate.passed, s.gate.failed) == (not is_open, is_open)
    assert len(raised) == (2 if is_open else 0)


async def test_cancelled_while_waiting() -> None:
    """A gate that waits can be cancelled at once."""
    with scene(clock=StandingClock(), answered=False) as s, anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(s.gate.pass_gate)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert (s.gate.passed, s.gate.failed) == (False, False)


async def test_each_run_has_a_probe_of_its_own() -> None:
    """After the gate has passed, each run makes one more probe; a closed one lets its kind start."""
    with scene() as s:
        await s.gate.pass_gate()
        for probes in (2, 3):
            await s.gate.probe_for_run()
            assert len(s.logged("gate.probed")) == probes
    assert len(s.logged("gate.passed")) == 1


async def test_run_whose_probe_opens() -> None:
    """A policy that was lifted between two runs stops the second before its kind starts."""
    with scene() as s:
        await s.gate.pass_gate()
        await s.clock.sleep(20.0)
        s.open()
        with pytest.raises(Unisolated):
            await s.gate.probe_for_run()
        assert s.clock.now() == 1020.0


async def test_watch_probes_every_15_seconds() -> None:
    """While a kind runs, the first probe that opens ends the watch, even inside the window of the start."""
    with scene() as s:
        s.clock.at(100.0, s.open)
        with pytest.raises(Unisolated, match="after the gate had passed"):
            await s.gate.watch()
        assert s.clock.now() == 1105.0
    assert len(s.logged("gate.probed")) == 7


async def test_watch_goes_on_after_a_local_fault() -> None:
    """A watch that cannot probe warns and goes on: the fault says nothing about the policy."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def restore() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    with scene() as s:
        s.clock.at(40.0, restore)
        s.clock.at(50.0, s.open)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            with pytest.raises(Unisolated):
                await s.gate.watch()
        finally:
            restore()
    assert [line["how"] for line in s.logged("gate.waiting")] == ["EMFILE", "EMFILE"]


async def test_off() -> None:
    """With the gate off everything passes without a probe, after one warning; the watch never ends."""
    s = Scene(None, SteppingClock())
    await s.gate.pass_gate()
    await s.gate.wait_passed()
    await s.gate.probe_for_run()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(s.gate.watch)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert [(line["event"], line["level"]) for line in s.lines] == [("gate.off", "warning")]
