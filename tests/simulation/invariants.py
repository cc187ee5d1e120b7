"""What must hold in every world, each rule in one sentence and as one function over what happened."""

from collections.abc import Callable, Iterator
from typing import Final

from driver.exits import DriverExit, ProgramExit
from driver.stop import HURRIED_SECONDS
from tests.simulation.history import Moment
from tests.simulation.world import GRACE_SECONDS, Told

GUARD_SECONDS: Final = 2.0
LEAVING_SECONDS: Final = 5.0
# The watch's interval, and what a probe may take.
WATCH_SECONDS: Final = 15.0 + 1.0
# A third of the lease and a tenth of that, and a timer that is late by its longest sleep.
_PACE: Final = 0.4
_PACE_SLACK: Final = 1.5
_HARMLESS: Final = ("calm", "over", "stop", "step_clock")
_WRITES: Final = ("context", "runtime", "result", "end")

Key = tuple[str, int]
Rule = Callable[[Told], Iterator[str]]


def violations(told: Told) -> list[str]:
    """Each rule that was broken, with the moments that broke it."""
    return [f"{rule.__doc__} {broken}" for rule in RULES for broken in rule(told)]


def nothing_is_sent_after_the_lease(told: Told) -> Iterator[str]:
    """Nothing is sent under a claim once the lease that the gateway granted it is over."""
    granted: dict[Key, float] = {}
    for moment in told.moments:
        if _is_grant(moment, "served"):
            granted[_claim(moment)] = moment.at + moment.lease
        elif moment.what == "sent" and moment.call in _WRITES and moment.at >= granted[_claim(moment)]:
            yield f"it was over at {granted[_claim(moment)]:.3f}: {moment}"


def nothing_is_sent_after_the_deadline(told: Told) -> Iterator[str]:
    """Nothing is sent under a claim past the earliest deadline that its driver has heard of."""
    deadlines: dict[Key, float] = {}
    for moment in told.moments:
        if _is_grant(moment, "heard"):
            deadlines[_claim(moment)] = min(moment.deadline, deadlines.get(_claim(moment), moment.deadline))
        elif moment.what == "sent" and moment.call in _WRITES and moment.at >= deadlines[_claim(moment)]:
            yield f"it was at {deadlines[_claim(moment)]:.3f}: {moment}"


def nobody_works_without_a_lease(told: Told) -> Iterator[str]:
    """No program runs on past lease or deadline for longer than the guard time, so two drivers never do at once."""
    ends: dict[Key, float] = {}
    deadlines: dict[Key, float] = {}
    woke = 0.0
    for moment in told.moments:
        if moment.what == "wakes":
            woke = moment.at
        elif _is_grant(moment, "served"):
            ends[_claim(moment)] = moment.at + moment.lease
        elif _is_grant(moment, "heard"):
            deadlines[_claim(moment)] = min(moment.deadline, deadlines.get(_claim(moment), moment.deadline))
        elif moment.what == "rests":
            last = max(woke, min(ends[_claim(moment)], deadlines[_claim(moment)])) + GUARD_SECONDS
            if moment.at > last:
                yield f"it had to end by {last:.3f}: {moment}"


def each_claim_ends_once(told: Told) -> Iterator[str]:
    """No claim is ended twice, and no run is completed twice."""
    ended: set[Key] = set()
    completed: set[str] = set()
    for moment in _taken_ends(told):
        if _claim(moment) in ended or (moment.outcome == "COMPLETED" and moment.run in completed):
            yield str(moment)
        ended.add(_claim(moment))
        if moment.outcome == "COMPLETED":
            completed.add(moment.run)


def every_run_ends(told: Told) -> Iterator[str]:
    """Every run ends, at the latest two hours after all is fair again."""
    yield from (f"{run} is {state}" for run, state in told.states.items() if state != "ENDED")


def what_was_measured_is_kept(told: Told) -> Iterator[str]:
    """A run that ends with its program's exit has its result kept, byte for byte what `out/` held."""
    measured = {_claim(m): m for m in told.moments if m.what == "measured"}
    for claim, kept in told.results.items():
        if claim not in measured or measured[claim].content != kept:
            yield f"{claim} has kept {kept}"
    for end in _taken_ends(told):
        if end.outcome not in ("COMPLETED", "FAILED") or end.exit is None or _claim(end) not in measured:
            continue
        if end.exit == measured[_claim(end)].exit and _claim(end) not in told.results:
            yield f"no result: {end}"


def an_undisturbed_claim_is_ended(told: Told) -> Iterator[str]:
    """A claim to which nothing happened but a stop is ended by its driver, also where its work would take too long."""
    holders: dict[str, tuple[str, Key, bool]] = {}
    # By driver: whether something happened to the pull that is out.
    disturbed: dict[str, bool] = {}
    for moment in told.moments:
        if moment.what == "sent" and moment.call == "next":
            disturbed[moment.who] = moment.fate is not None
        if moment.who == "world":
            if moment.what not in _HARMLESS:
                holders = {run: (who, claim, True) for run, (who, claim, _) in holders.items()}
                disturbed = dict.fromkeys(disturbed, True)
        elif moment.what == "served" and moment.call == "next" and "lease" in moment.fields:
            yield from _left_alone(holders.pop(moment.run, None))
        elif moment.what == "heard" and moment.call == "next" and "lease" in moment.fields:
            holders[moment.run] = (moment.who, _claim(moment), disturbed.get(moment.who, False))
        elif moment.what == "unheard" or moment.fields.get("fate") is not None:
            holders = {run: (who, claim, bad or who == moment.who) for run, (who, claim, bad) in holders.items()}
        elif moment.fields.get("answer") in ("ENDED", "ALREADY_ENDED"):
            holders.pop(moment.run, None)
    for holder in holders.values():
        yield from _left_alone(holder)


def _left_alone(holder: tuple[str, Key, bool] | None) -> Iterator[str]:
    if holder is not None and not holder[2]:
        yield f"{holder[0]} has left {holder[1]} alone"


def no_result_is_given_up_for_nothing(told: Told) -> Iterator[str]:
    """A result is not given up while all of its calls are answered well."""
    failed: set[Key] = set()
    open_calls: dict[tuple[str, Key, str], int] = {}
    for moment in told.moments:
        if moment.what in ("sent", "unheard", "heard") and moment.call in ("runtime", "result"):
            call = (moment.who, _claim(moment), moment.call)
            open_calls[call] = open_calls.get(call, 0) + (1 if moment.what == "sent" else -1)
            is_good = moment.what == "sent" and moment.fate is None
            is_good = is_good or (moment.what == "heard" and moment.status in (200, 204))
            if not is_good:
                failed.add(_claim(moment))
    for end in _taken_ends(told):
        if end.exit == ProgramExit.NOT_ACKNOWLEDGED and _claim(end) not in failed:
            yield str(end)


def a_confirmed_result_is_not_sent_again(told: Told) -> Iterator[str]:
    """A result whose digest came back is not sent again."""
    confirmed: set[Key] = set()
    for moment in told.moments:
        if moment.what == "heard" and moment.call == "result" and moment.confirmed:
            confirmed.add(_claim(moment))
        elif moment.what == "sent" and moment.call == "result" and _claim(moment) in confirmed:
            yield str(moment)


def a_refused_claim_is_silent(told: Told) -> Iterator[str]:
    """Once a claim was refused, nothing is sent under it, unless the gateway may have refused for its own end."""
    refused: set[Key] = set()
    own_doing: set[Key] = set()
    for moment in told.moments:
        if moment.what == "heard" and moment.run:
            if moment.status == 409 and not moment.fields.get("confirmed") and _claim(moment) not in own_doing:
                refused.add(_claim(moment))
            elif moment.fields.get("confirmed"):
                own_doing.add(_claim(moment))
        elif moment.what == "tries" and moment.call == "end":
            own_doing.add(_claim(moment))
        if moment.what == "sent" and moment.run and _claim(moment) in refused:
            yield str(moment)


def a_rejected_token_ends_the_driver(told: Told) -> Iterator[str]:
    """After 401 a driver sends nothing and exits 0; one that was telling UNISOLATED may repeat that, and exits 77."""
    codes: dict[str, tuple[int, ...]] = {}
    telling: set[str] = set()
    rejected: dict[str, float] = {}
    exits = {moment.who: moment for moment in told.moments if moment.what == "exits"}
    killed = {moment.driver for moment in told.moments if moment.what == "kill"}
    for moment in told.moments:
        if moment.what == "reaches":
            codes[moment.who] = (DriverExit.OK, DriverExit.UNISOLATED)
        elif moment.what == "sent" and moment.fields.get("outcome") == "UNISOLATED":
            telling.add(moment.who)
        elif moment.what == "heard" and moment.status == 401:
            rejected.setdefault(moment.who, moment.at)
        elif moment.what == "sent" and moment.who in rejected:
            yield str(moment)
    over = told.moments[-1].at if told.moments else 0.0
    for who, at in rejected.items():
        if who in exits:
            if exits[who].code not in codes.get(who, (DriverExit.OK,)) or (
                exits[who].at > at + LEAVING_SECONDS and who not in telling
            ):
                yield str(exits[who])
        elif who not in killed | telling and over > at + LEAVING_SECONDS:
            yield f"{who} has not exited"


def nobody_works_in_an_open_network(told: Told) -> Iterator[str]:
    """No kind starts before the gate has passed, nor works on in an open network for longer than the watch takes."""
    opened, closes, woke = 0.0, 0.0, 0.0
    began: dict[Key, float] = {}
    for moment in told.moments:
        if moment.what == "wakes":
            woke = moment.at
        elif moment.what == "open_network":
            opened, closes = moment.at, moment.at + moment.seconds
        elif moment.what == "works":
            began[_claim(moment)] = moment.at
            if not moment.passed:
                yield str(moment)
        elif moment.what == "rests":
            since = max(began[_claim(moment)], opened, woke)
            if min(moment.at, closes) > since + WATCH_SECONDS + GUARD_SECONDS:
                yield f"it has been open since {opened:.3f}: {moment}"


def nothing_is_told_without_isolation(told: Told) -> Iterator[str]:
    """Once the watch beside a kind sees the network open, its driver tells UNISOLATED and no more, and exits 77."""
    opened: dict[str, float] = {}
    working: set[str] = set()
    for moment in told.moments:
        if moment.what == "works":
            working.add(moment.who)
        elif moment.what == "rests":
            working.discard(moment.who)
        elif moment.what == "reaches" and moment.who in working:
            opened.setdefault(moment.who, moment.at)
        if moment.who not in opened or moment.at == opened[moment.who]:
            continue
        if moment.what == "sent" and moment.run and moment.fields.get("outcome") != "UNISOLATED":
            if moment.call != "renew":
                yield str(moment)
        elif moment.what == "exits" and moment.code != DriverExit.UNISOLATED:
            yield str(moment)


def renewals_keep_their_pace(told: Told) -> Iterator[str]:
    """As long as a claim is held, stopping or not, its next renewal is tried a third into the lease."""
    due: dict[Key, float] = {}
    sent: dict[str, float] = {}
    for moment in told.moments:
        if moment.what == "wakes":
            due.clear()
        if moment.what not in ("tries", "sent", "heard", "rests", "measured"):
            continue
        if moment.what == "tries" and moment.call in ("next", "renew"):
            sent[moment.who] = moment.at
        if moment.fields.get("run") is None:
            continue
        claim = _claim(moment)
        if moment.at > due.get(claim, moment.at):
            yield f"the next was due at {due[claim]:.3f}: {moment}"
            due.pop(claim)
        if _is_grant(moment, "heard"):
            due[claim] = max(moment.at, sent[moment.who] + _PACE * moment.lease) + _PACE_SLACK
        elif (moment.what == "tries" and moment.call == "renew") or moment.fields.get("status") in (401, 409):
            due.pop(claim, None)


def a_stop_is_over_within_its_grace(told: Told) -> Iterator[str]:
    """A driver that is stopped exits within its grace, or within two seconds when it is stopped twice."""
    gone_by: dict[str, float] = {}
    for moment in told.moments:
        if moment.what in ("stop", "stop_twice"):
            # A second stop that comes as an event of its own hurries as well.
            hurried = moment.what == "stop_twice" or moment.driver in gone_by
            seconds = HURRIED_SECONDS if hurried else GRACE_SECONDS
            last = moment.at + seconds + GUARD_SECONDS
            gone_by[moment.driver] = min(last, gone_by.get(moment.driver, last))
        elif moment.what == "wakes":
            gone_by = {who: max(last, moment.at + GUARD_SECONDS) for who, last in gone_by.items()}
        elif moment.what in ("exits", "kill"):
            gone_by.pop(moment.who if moment.what == "exits" else moment.driver, None)
        if late := [who for who, last in gone_by.items() if moment.at > last]:
            yield f"{late} should be gone: {moment}"
            return


def nothing_unforeseen_happens(told: Told) -> Iterator[str]:
    """Nothing goes wrong in a driver that nobody foresaw."""
    yield from (str(moment) for moment in told.moments if moment.what == "fault")


RULES: Final[tuple[Rule, ...]] = (
    nothing_is_sent_after_the_lease,
    nothing_is_sent_after_the_deadline,
    nobody_works_without_a_lease,
    each_claim_ends_once,
    every_run_ends,
    what_was_measured_is_kept,
    an_undisturbed_claim_is_ended,
    no_result_is_given_up_for_nothing,
    a_confirmed_result_is_not_sent_again,
    a_refused_claim_is_silent,
    a_rejected_token_ends_the_driver,
    nobody_works_in_an_open_network,
    nothing_is_told_without_isolation,
    renewals_keep_their_pace,
    a_stop_is_over_within_its_grace,
    nothing_unforeseen_happens,
)


def _claim(moment: Moment) -> Key:
    return moment.run, moment.epoch


def _is_grant(moment: Moment, what: str) -> bool:
    return moment.what == what and "lease" in moment.fields


def _taken_ends(told: Told) -> Iterator[Moment]:
    """The ends that the gateway took."""
    return (m for m in told.moments if m.what == "served" and m.call == "end" and m.fields.get("answer") == "ENDED")
