"""The simulation finds what it is there for: a rule of the driver that is broken on purpose shows within some seeds."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

from driver import lease, result
from driver.errors import Unisolated
from driver.exits import DriverExit
from driver.holder import RunHolder
from driver.isolation import IsolationGate
from driver.lease import LeaseState
from driver.loop import Loop
from driver.result import ResultDelivery
from driver.stop import Stop
from driver.workspace.pack import pack
from tests.simulation import invariants
from tests.simulation.__main__ import story

SEEDS = 60

Plant = Callable[[pytest.MonkeyPatch], None]


def no_fence(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(LeaseState, "loss", lambda self, now: None)


def late_doubt(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(lease, "DOUBT_AFTER", 1.5)


def slow_renewals(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(lease, "RENEW_AFTER", 0.7)


def nothing_is_cancelled(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(RunHolder, "_kill", lambda self, reason: None)


def refusals_are_ignored(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(RunHolder, "_lose", lambda self, loss: None)


def deadline_is_forgotten(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(LeaseState, "_place_deadline", lambda self, seconds: None)


def fails_after_401(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Loop, "_taken_back", lambda self: DriverExit.INTERNAL)


def result_is_left_out(plant: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any, **__: Any) -> None:
        return None

    plant.setattr(ResultDelivery, "_send", nothing)


def result_of_another_run(plant: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []

    def first(out: Any, *rest: Any, **named: Any) -> Any:
        kept.append(out)
        return pack(kept[0], *rest, **named)

    plant.setattr(result, "pack", first)


def stops_never(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Stop, "ask", lambda self: None)


def packing_breaks(plant: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any) -> float:
        raise RuntimeError("planted")

    plant.setattr(ResultDelivery, "_pack", breaks)


def gate_is_open(plant: pytest.MonkeyPatch) -> None:
    async def at_once(_: IsolationGate) -> None:
        return None

    plant.setattr(IsolationGate, "wait_passed", at_once)
    plant.setattr(IsolationGate, "probe_for_run", at_once)


def watch_is_blind(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(IsolationGate, "watch", lambda self: anyio.sleep_forever())


def open_network_is_ignored(plant: pytest.MonkeyPatch) -> None:
    watch = IsolationGate.watch

    async def ignoring(self: IsolationGate) -> None:
        while True:
            with suppress(Unisolated):
                await watch(self)

    plant.setattr(IsolationGate, "watch", ignoring)


PLANTED: list[tuple[Plant, invariants.Rule]] = [
    (no_fence, invariants.nothing_is_sent_after_the_lease),
    (late_doubt, invariants.nothing_is_sent_after_the_lease),
    (slow_renewals, invariants.renewals_keep_their_pace),
    (nothing_is_cancelled, invariants.nobody_works_without_a_lease),
    (refusals_are_ignored, invariants.a_refused_claim_is_silent),
    (deadline_is_forgotten, invariants.an_undisturbed_claim_is_ended),
    (fails_after_401, invariants.a_rejected_token_ends_the_driver),
    (result_is_left_out, invariants.what_was_measured_is_kept),
    (result_of_another_run, invariants.what_was_measured_is_kept),
    (packing_breaks, invariants.nothing_unforeseen_happens),
    (gate_is_open, invariants.nobody_works_in_an_open_network),
    (watch_is_blind, invariants.nobody_works_in_an_open_network),
    (open_network_is_ignored, invariants.nothing_is_told_without_isolation),
    (stops_never, invariants.a_stop_is_over_within_its_grace),
]


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "rule"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_fault_is_found(plant: Plant, rule: invariants.Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule that guards against the fault refuses what happens in one of the first seeds."""
    plant(monkeypatch)
    assert any(list(rule(story(seed)[0])) for seed in range(1, SEEDS + 1))
