"""Each rule refuses a history that breaks it, written by hand."""

from pathlib import Path

import pytest

from tests.simulation import invariants
from tests.simulation.history import Moment
from tests.simulation.world import Told, digest

ONE = {"run": "run-1", "epoch": 1}
GRANT = {"lease": 60.0, "deadline": 100.0}


def claimed(at: float = 0.0, who: str = "driver-1", **other: object) -> list[Moment]:
    """The gateway grants a claim of a minute, and the driver hears of it."""
    fields = {"call": "next", **ONE, **GRANT, "status": 200, **other}
    return [
        Moment(at, who, "tries", {"call": "next", "run": None, "epoch": None}),
        Moment(at, who, "sent", {"call": "next", "run": None, "epoch": None, "fate": None}),
        Moment(at, "gateway", "served", {"to": who, **fields}),
        Moment(at, who, "heard", fields),
    ]


def moment(at: float, what: str, who: str = "driver-1", **fields: object) -> Moment:
    return Moment(at, who, what, {**ONE, "fate": None, **fields} if what == "sent" else {**ONE, **fields})


def end(at: float, outcome: str = "COMPLETED", **fields: object) -> Moment:
    """The gateway takes an end."""
    told = {"call": "end", "status": 200, "answer": "ENDED", "outcome": outcome, "exit": 0, **fields}
    return moment(at, "served", "gateway", to="driver-1", **told)


MEASURED = moment(5, "measured", exit=0, content=digest(b"here"))
CONFIRMED = moment(6, "heard", call="result", status=204, confirmed=True)

WORKS = moment(1, "works", passed=True)
REACHES = Moment(5, "driver-1", "reaches", {"target": "10.96.0.1:443"})

BAD: dict[invariants.Rule, Told] = {
    invariants.nothing_is_sent_after_the_lease: Told([*claimed(), moment(60, "sent", call="result")]),
    invariants.nothing_is_sent_after_the_deadline: Told(
        [*claimed(deadline=20.0), moment(20, "sent", call="end", outcome="FAILED")]
    ),
    invariants.nobody_works_without_a_lease: Told([*claimed(), moment(1, "works"), moment(62.5, "rests")]),
    invariants.each_claim_ends_once: Told([*claimed(), end(3), end(4)]),
    invariants.every_run_ends: Told([], {"run-1": "LEASED"}),
    invariants.what_was_measured_is_kept: Told([*claimed(), MEASURED, end(7)]),
    invariants.an_undisturbed_claim_is_ended: Told([*claimed(), moment(9, "works")]),
    invariants.no_result_is_given_up_for_nothing: Told([*claimed(), MEASURED, end(7, "FAILED", exit=43)]),
    invariants.a_confirmed_result_is_not_sent_again: Told([*claimed(), CONFIRMED, moment(7, "sent", call="result")]),
    invariants.a_refused_claim_is_silent: Told(
        [*claimed(), moment(8, "heard", call="renew", status=409), moment(9, "sent", call="result")]
    ),
    invariants.a_rejected_token_ends_the_driver: Told(
        [*claimed(), moment(8, "heard", call="renew", status=401), moment(9, "sent", call="end", outcome="FAILED")]
    ),
    invariants.nobody_works_in_an_open_network: Told([*claimed(), moment(1, "works", passed=False)]),
    invariants.nothing_is_told_without_isolation: Told(
        [*claimed(), WORKS, REACHES, moment(6, "sent", call="end", outcome="COMPLETED")]
    ),
    invariants.renewals_keep_their_pace: Told([*claimed(), moment(26, "rests")]),
    invariants.a_stop_is_over_within_its_grace: Told(
        [Moment(1, "world", "stop", {"driver": "driver-1"}), moment(29, "rests")]
    ),
    invariants.nothing_unforeseen_happens: Told([Moment(1, "driver-1", "fault", {"error": "KeyError"})]),
}

GOOD = Told(
    [
        *claimed(),
        WORKS,
        MEASURED,
        moment(5, "sent", call="result"),
        CONFIRMED,
        moment(6, "rests"),
        moment(6, "tries", call="end"),
        moment(6, "sent", call="end", outcome="COMPLETED"),
        end(7),
        moment(7, "heard", call="end", status=200),
    ],
    {"run-1": "ENDED"},
    {("run-1", 1): digest(b"here")},
)


def test_the_docs_state_every_rule() -> None:
    """docs/simulation.md lists the rules, in the words and the order of the code."""
    docs = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text("utf-8")
    section = docs.split("\n## Rules\n", 1)[1].split("\n## ", 1)[0]
    stated = [line.removeprefix("- ") for line in section.splitlines() if line.startswith("- ")]
    assert stated == [rule.__doc__ for rule in invariants.RULES]


def test_every_rule_has_a_bad_history() -> None:
    """None of the rules is left out."""
    assert BAD.keys() == set(invariants.RULES)


@pytest.mark.parametrize("rule", invariants.RULES, ids=lambda rule: rule.__name__)
def test_a_bad_history_is_refused(rule: invariants.Rule) -> None:
    """The rule sees what is wrong, and has nothing against a run that goes well."""
    assert list(rule(BAD[rule]))
    assert not list(rule(GOOD))


def test_another_result_than_was_measured() -> None:
    """A kept result that holds something else than `out/` did is refused."""
    kept = Told(GOOD.moments, GOOD.states, {("run-1", 1): digest(b"something else")})
    assert list(invariants.what_was_measured_is_kept(kept))


def test_a_driver_that_stays_after_401() -> None:
    """A driver whose token was rejected may not go on living, nor exit as if it had failed."""
    rejected = [*claimed(), moment(8, "heard", call="renew", status=401)]
    stays = Told([*rejected, Moment(20, "world", "over")])
    fails = Told([*rejected, Moment(9, "driver-1", "exits", {"code": 70})])
    leaves = Told([*rejected, Moment(9, "driver-1", "exits", {"code": 0})])
    rule = invariants.a_rejected_token_ends_the_driver
    assert [bool(list(rule(told))) for told in (stays, fails, leaves)] == [True, True, False]


def test_a_claim_that_was_lost_on_its_way() -> None:
    """A claim is disturbed as well by what happened before its driver had heard of it."""
    *before, heard = claimed()
    lost = Told([*before, Moment(0, "world", "take_away", ONE), heard])
    assert not list(invariants.an_undisturbed_claim_is_ended(lost))


def test_work_in_an_open_network() -> None:
    """The watch may take its interval to see that the network is open, and no longer."""
    opened = Moment(2, "world", "open_network", {"seconds": 40.0})
    ends = [Told([*claimed(), WORKS, opened, moment(at, "rests")]) for at in (19, 21)]
    assert [bool(list(invariants.nobody_works_in_an_open_network(told))) for told in ends] == [False, True]


def test_a_driver_that_stays_in_an_open_network() -> None:
    """It tells UNISOLATED, and exits with the code for that."""
    told = [*claimed(), WORKS, REACHES, moment(6, "sent", call="end", outcome="UNISOLATED")]
    codes = [Told([*told, Moment(7, "driver-1", "exits", {"code": code})]) for code in (77, 0)]
    assert [bool(list(invariants.nothing_is_told_without_isolation(told))) for told in codes] == [False, True]
