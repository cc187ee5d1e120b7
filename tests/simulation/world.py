"""One world: a gateway, drivers one after the other or two at a time, and what a seed makes happen to them.

Everything runs in one thread on virtual time, worker threads in place, so that a seed always tells the same story.
"""

import errno
import hashlib
import io
import random
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple
from unittest.mock import patch

import anyio
from anyio import to_thread

from driver.isolation import IsolationGate
from driver.kind import HeldRun, Outcome
from driver.probe import Probe, Verdict
from driver.stub.runs import State
from driver.values import Target
from tests.driver.holding import Bench
from tests.driver.memory_gateway import MemoryGateway
from tests.simulation.history import History, Moment
from tests.simulation.weather import Network, Weather
from tests.virtual_time import BACKEND, VirtualClock

STORM_SECONDS: Final = 240.0
# A gateway may ask for an hour of quiet, and a tenth more is added to that.
CALM_SECONDS: Final = 7200.0
GRACE_SECONDS: Final = 25.0
_TARGET: Final = Target("10.96.0.1", 443)
_HOUR: Final = 3600.0
_EVENTS: Final = (
    "stop",
    "stop_twice",
    "kill",
    "suspend",
    "step_clock",
    "take_away",
    "move_deadline",
    "outage",
    "revoke",
    "open_network",
    "open_network",
    "second_driver",
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True)
class Told:
    """What a world leaves to be judged. `results` are digests of what is in the kept results."""

    moments: list[Moment]
    states: dict[str, str] = field(default_factory=dict)
    results: dict[tuple[str, int], str] = field(default_factory=dict)


async def _in_place(function: Callable[[*Ts], T], *args: *Ts, **_: Any) -> T:
    return function(*args)


def play(seed: int, directory: Path) -> Told:
    """Live the world of that seed; `directory` is the workspace of its drivers."""
    with patch.object(to_thread, "run_sync", _in_place):
        return anyio.run(World(seed, directory).live, backend=BACKEND[0], backend_options=dict(BACKEND[1]))


class World:
    """The world of one seed; lived once."""

    def __init__(self, seed: int, directory: Path) -> None:
        self._seed = seed
        self._directory = directory
        self._rng = random.Random(f"world {seed}")
        self._drivers = 0
        self._living: dict[str, tuple[Bench, Network, anyio.CancelScope]] = {}
        self._stormy = True
        self._open_until = 0.0

    async def live(self) -> Told:
        rng = self._rng
        self._clock = VirtualClock()
        self._history = History(self._clock.now)
        self._gateway = MemoryGateway(self._clock, run=[self._run(n) for n in range(1, rng.randint(1, 3) + 1)])
        self._weather = Weather(self._seed, rng.choice((0.0, 0.05, 0.2, 0.4)))
        self._open_network(rng.choice((0.0, 0.0, rng.uniform(0, 20))))
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._keep_a_driver)
            tasks.start_soon(self._storm)
            with anyio.move_on_after(STORM_SECONDS + CALM_SECONDS):
                while not self._is_over:
                    await self._clock.sleep(1.0)
            self._history.note("world", "over")
            for name in list(self._living):
                self._kill(name)
            tasks.cancel_scope.cancel("the world is over")
        return Told(
            self._history.moments,
            {run.terms.id: run.state.value for run in self._gateway.state.runs},
            {(kept.run, kept.epoch): digest(_answer_in(kept.body)) for kept in self._gateway.state.results},
        )

    def _run(self, number: int) -> dict[str, Any]:
        rng = self._rng
        return {
            "id": f"run-{number}",
            "kind": "WORK",
            "lease_seconds": rng.choice((6.0, 20.0, 60.0)),
            "deadline_seconds": rng.choice((30.0, 120.0, 900.0)),
            "work_seconds": rng.choice((20.0, 300.0)),
            "upload_seconds": rng.choice((20.0, 600.0)),
            "attempts": rng.randint(2, 6),
            "retry_seconds": rng.choice((0.0, 1.0)),
        }

    @property
    def _is_over(self) -> bool:
        self._gateway.state.runs.reap()
        return not self._stormy and all(run.state is State.ENDED for run in self._gateway.state.runs)

    async def _keep_a_driver(self) -> None:
        while True:
            if not self._living:
                await self._clock.sleep(self._rng.uniform(0, 5))
                self._start()
            await self._clock.sleep(1.0)

    def _start(self) -> None:
        state = self._gateway.state
        if not state.sandbox.live:
            life = timedelta(seconds=1_000_000)
            state.sandbox = state.sandboxes.ensure("workspace:1", state.scenario.subject, life)
            self._gateway.token = state.sandboxes.token(state.sandbox)
        self._drivers += 1
        name = f"driver-{self._drivers}"
        network = Network(name, self._gateway, self._weather, self._history, self._clock, self._tasks)
        out = self._directory / name
        out.mkdir()

        async def work(held: HeldRun) -> Outcome:
            return await self._work(name, out / "out", held, bench.gate)

        async def probe(_: Target, __: float) -> Probe:
            return await self._probe(name, rng)

        seed = self._seed * 1000 + self._drivers
        rng = random.Random(f"probes {seed}")
        bench = Bench(
            out,
            work,
            target=_TARGET,
            probe=probe,
            clock=self._clock,
            gateway=self._gateway,
            network=network,
            seed=seed,
        )
        scope = anyio.CancelScope()
        self._living[name] = bench, network, scope
        self._tasks.start_soon(self._drive, name, bench, scope)

    async def _drive(self, name: str, bench: Bench, scope: anyio.CancelScope) -> None:
        self._history.note(name, "starts", sandbox=self._gateway.state.sandbox.id)
        with scope:
            code = await bench.loop()
            self._history.note(name, "exits", code=int(code))
        for fault in (line for line in bench.records if line.get("traceback")):
            self._history.note(name, "fault", error=fault["traceback"])
        self._living.pop(name, None)

    async def _probe(self, name: str, rng: random.Random) -> Probe:
        """The Kubernetes API Service answers while the network policy is not in force."""
        await self._clock.sleep(rng.uniform(0, 0.3))
        if self._clock.now() >= self._open_until:
            return Probe(Verdict.CLOSED, "refused")
        if name in self._living:
            self._history.note(name, "reaches", target=str(_TARGET))
        return Probe(Verdict.OPEN, "opened")

    async def _work(self, name: str, out: Path, held: HeldRun, gate: IsolationGate) -> Outcome:
        """A kind as the real ones go: work that a stop cuts short, then the result, whatever became of the work."""
        rng = random.Random(f"{self._seed} {held.run.id} {held.run.epoch}")
        claim = {"run": held.run.id, "epoch": held.run.epoch}
        self._history.note(name, "works", **claim, passed=gate.passed)
        try:
            with held.work() as work:
                await self._clock.sleep(rng.choice((0.0, rng.uniform(0, 10), rng.uniform(0, 90))))
            exit = work.stopped.exit if work.stopped else rng.choice((0, 0, 0, 1, 137))
            if rng.random() < 0.05:
                raise OSError(errno.ENOSPC, "no space left")
            content = f"{held.run.id} {held.run.epoch} {'x' * rng.choice((1, 1000, 600_000))}".encode()
            (out / "answer").write_bytes(content)
            self._history.note(name, "measured", **claim, exit=exit, content=digest(content))
            await held.results.deliver(exit)
            return Outcome("COMPLETED" if exit == 0 else "FAILED", exit=exit)
        finally:
            self._history.note(name, "rests", **claim)

    async def _storm(self) -> None:
        ends = self._clock.now() + STORM_SECONDS
        for _ in range(self._rng.randint(0, 8)):
            await self._clock.sleep(self._rng.choice((self._rng.uniform(0, 3), self._rng.uniform(0, 60))))
            if self._clock.now() >= ends:
                break
            await self._happen(self._rng.choice(_EVENTS))
        self._weather.chance = 0.0
        self._stormy = False
        self._history.note("world", "calm")

    async def _happen(self, event: str) -> None:
        rng, runs = self._rng, self._gateway.state.runs
        name = next(iter(self._living), None)
        run = next((run for run in runs if run.state is State.LEASED), None)
        seconds = rng.choice((rng.uniform(0, 5), rng.uniform(0, 100)))
        step = rng.uniform(-_HOUR, _HOUR)
        match event:
            case "stop" | "stop_twice" if name:
                self._history.note("world", event, driver=name)
                self._living[name][0].stop.ask()
                if event == "stop_twice":
                    self._living[name][0].stop.ask()
            case "kill" if name:
                self._history.note("world", event, driver=name)
                self._kill(name)
            case "suspend":
                self._history.note("world", event, seconds=seconds)
                self._clock.suspend(seconds)
                self._history.note("world", "wakes")
            case "step_clock":
                self._history.note("world", event, seconds=step)
                self._clock.step(step)
            case "take_away" if run:
                self._history.note("world", event, run=run.terms.id, epoch=run.epoch)
                runs.take_away(run.terms.id)
            case "move_deadline" if run:
                moved = runs.move_deadline(run.terms.id, self._gateway.now() + timedelta(seconds=seconds))
                self._history.note("world", event, run=run.terms.id, epoch=run.epoch, seconds=seconds, moved=moved)
            case "outage":
                self._history.note("world", event, seconds=seconds)
                self._weather.out = True
                await self._clock.sleep(seconds)
                self._gateway.restart()
                self._weather.out = False
            case "revoke":
                self._history.note("world", event, sandbox=self._gateway.state.sandbox.id)
                self._gateway.state.sandboxes.take_back(self._gateway.state.sandbox)
            case "open_network":
                self._open_network(rng.uniform(0, 100))
            case "second_driver" if len(self._living) == 1:
                self._start()

    def _open_network(self, seconds: float) -> None:
        self._history.note("world", "open_network", seconds=seconds)
        self._open_until = self._clock.now() + seconds

    def _kill(self, name: str) -> None:
        _, network, scope = self._living.pop(name)
        network.cut()
        scope.cancel("killed")


def digest(content: bytes) -> str:
    """A short name of some bytes."""
    return hashlib.sha256(content).hexdigest()[:12]


def _answer_in(body: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        answer = archive.extractfile("out/answer")
        return b"" if answer is None else answer.read()
