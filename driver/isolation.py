"""The isolation gate: proves that the network policy holds, then keeps watching.

The proof is a TCP connection to the Kubernetes API Service that does not come about. No kind starts before
it, and a connection that opens later ends the work (docs/design.md, "The isolation gate").
"""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, NoReturn, Protocol

import anyio

from driver.clock import Clock
from driver.errors import Unisolated
from driver.log import Log
from driver.probe import Probe, Verdict, probe
from driver.settings import IsolationSettings
from driver.values import Target

_FIRST_NOTICE_SECONDS: Final = 2.0
_NOTICE_EVERY_SECONDS: Final = 10.0

_OWN_NODE: Final = (
    "a cluster whose API server sits on the Pod's own node may keep it reachable whatever the policy says: "
    "run sandboxes on other nodes"
)


class PositiveControl(Protocol):
    """Set once the gateway has answered, whatever it said: the network is up. An anyio.Event is one."""

    def is_set(self) -> bool: ...

    async def wait(self) -> None: ...


class Step(Enum):
    """What follows from one probe."""

    HOLDS = "holds"
    UNISOLATED = "unisolated"
    STILL_OPEN = "still_open"
    NO_NETWORK = "no_network"
    NO_PROBE = "no_probe"


# Seconds until another probe, and what a person who waits is told.
_WAITS: Final = {
    Step.STILL_OPEN: (0.1, f"the target opens, so the policy is not in force yet; {_OWN_NODE}"),
    Step.NO_NETWORK: (1.0, "the target is closed, but the gateway has not answered either: no network yet"),
    Step.NO_PROBE: (1.0, "the probe could not be made, so nothing is proven"),
}


def decide(result: Probe, *, controlled: bool, overdue: bool) -> Step:
    """What follows from one probe.

    `controlled`: the gateway had answered before the probe began. `overdue`: the window is over.
    """
    if result.verdict is Verdict.OPEN:
        return Step.UNISOLATED if overdue else Step.STILL_OPEN
    if result.verdict is Verdict.LOCAL_FAULT:
        return Step.NO_PROBE
    return Step.HOLDS if controlled else Step.NO_NETWORK


class IsolationGate:
    """The gate of one driver.

    `answered` is set by whoever talks to the gateway. `started` is the moment the driver started, on
    `clock`; the policy has `settings.window` seconds from there to come into force. `probe` makes one probe.
    """

    def __init__(
        self,
        settings: IsolationSettings,
        *,
        clock: Clock,
        log: Log,
        answered: PositiveControl,
        started: float,
        watch_interval: float = 15.0,
        probe: Callable[[Target, float], Awaitable[Probe]] = probe,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._log = log
        self._answered = answered
        self._started = started
        self._watch_interval = watch_interval
        self._probe_once = probe
        self._decided = anyio.Event()
        self._refuted: str | None = None

    @property
    def passed(self) -> bool:
        """Whether `pass_gate` has returned."""
        return self._decided.is_set() and self._refuted is None

    @property
    def failed(self) -> bool:
        """Whether `pass_gate` has raised Unisolated."""
        return self._refuted is not None

    async def wait_passed(self) -> None:
        """Return when `pass_gate`, which runs elsewhere, has returned. Raises Unisolated when that did."""
        await self._decided.wait()
        if self._refuted is not None:
            raise Unisolated(self._refuted)

    async def pass_gate(self) -> None:
        """Return when the policy holds; with the gate off, at once.

        Raises Unisolated when a probe still opens after the window. Goes on trying while there is no
        network, or a fault of this machine keeps it from probing.
        """
        if self._settings.target is None:
            self._log.warning("gate.off", text="DRIVER_ISOLATION=off: nothing proves that the network is closed")
            self._decided.set()
            return
        try:
            result, probes = await self._until_closed(self._settings.target)
        except Unisolated as error:
            self._refuted = str(error)
            self._decided.set()
            raise
        self._log.info("gate.passed", how=result.how, probes=probes, seconds=round(self._elapsed(), 3))
        self._decided.set()

    async def probe_for_run(self) -> None:
        """Return after one more closed probe, which a kind needs before it starts. As `pass_gate` otherwise."""
        if self._settings.target is not None:
            await self._until_closed(self._settings.target)

    async def watch(self) -> NoReturn:
        """Probe at the watch interval until cancelled. Raises Unisolated on the first probe that opens.

        A probe that could not be made says nothing: it is logged, and the watch goes on.
        """
        target = self._settings.target
        while target is None:
            await anyio.sleep_forever()
        while True:
            await self._clock.sleep(self._watch_interval)
            result = await self._probe(target)
            if result.verdict is Verdict.OPEN:
                raise Unisolated(f"{target} opens ({result.how}) after the gate had passed: {_OWN_NODE}")
            if result.verdict is Verdict.LOCAL_FAULT:
                self._log.warning("gate.waiting", how=result.how, why="the watch could not probe; it goes on trying")

    async def _until_closed(self, target: Target) -> tuple[Probe, int]:
        notice = self._clock.now() + _FIRST_NOTICE_SECONDS
        probes = 0
        while True:
            controlled = self._answered.is_set()
            result = await self._probe(target)
            probes += 1
            step = decide(result, controlled=controlled, overdue=self._elapsed() >= self._settings.window)
            if step is Step.HOLDS:
                return result, probes
            if step is Step.UNISOLATED:
                raise Unisolated(
                    f"{target} opens ({result.how}) {self._elapsed():.1f} s after the driver started; "
                    f"it had {self._settings.window:g} s to close: {_OWN_NODE}"
                )
            seconds, why = _WAITS[step]
            if self._clock.now() >= notice:
                notice = self._clock.now() + _NOTICE_EVERY_SECONDS
                self._log.warning(
                    "gate.waiting", how=result.how, why=why, probes=probes, seconds=round(self._elapsed(), 1)
                )
            await self._pause(seconds)

    async def _probe(self, target: Target) -> Probe:
        result = await self._probe_once(target, self._settings.open_timeout)
        self._log.debug("gate.probed", target=str(target), verdict=result.verdict.value, how=result.how)
        return result

    def _elapsed(self) -> float:
        return self._clock.now() - self._started

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until the gateway answers for the first time."""
        if self._answered.is_set():
            await self._clock.sleep(seconds)
            return
        async with anyio.create_task_group() as tasks:

            async def first(wait: Callable[[], Awaitable[None]]) -> None:
                await wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(first, self._answered.wait)
            tasks.start_soon(first, lambda: self._clock.sleep(seconds))
