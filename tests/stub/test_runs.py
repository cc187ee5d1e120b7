"""The rules of runs, on a clock that the test moves."""

from datetime import datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from driver.stub.errors import ClaimNotHeld, Rejected
from driver.stub.runs import AgentRun, Runs, RunTerms, State
from tests.stub.support import FakeTime

KINDS = ["REVIEW"]


def silent(event: str, **fields: object) -> None:
    """Nobody reads these moves."""


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def terms(name: str = "a", subject: str = "review:1", **facts: object) -> RunTerms:
    given = {"kind": "REVIEW", "lease": seconds(60), "attempts": 3, **facts}
    return RunTerms(id=name, subject=subject, **given)  # type: ignore[arg-type]  # each test gives what it means


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def runs(time: FakeTime) -> Runs:
    return Runs(time, silent)


def claimed(runs: Runs, subject: str = "review:1") -> AgentRun:
    run = runs.claim(subject, KINDS)
    assert run is not None
    return run


def test_a_claim_takes_the_next_epoch_and_leases(runs: Runs, time: FakeTime) -> None:
    """A claim leases the run under epoch 1, for the lease, with a deadline that counts from the claim."""
    runs.queue(terms(deadline=seconds(600)))
    time.advance(10)
    run = claimed(runs)
    assert (run.state, run.epoch, run.attempt) == (State.LEASED, 1, 0)
    assert run.leased_until == time.moment + seconds(60)
    assert run.deadline == time.moment + seconds(600)


def test_one_run_of_a_subject_is_leased(runs: Runs) -> None:
    """While one run of a subject is leased, its others wait; another subject's does not."""
    for name, subject in (("a", "review:1"), ("b", "review:1"), ("c", "review:2")):
        runs.queue(terms(name, subject))
    assert claimed(runs).terms.id == "a"
    assert runs.claim("review:1", KINDS) is None
    assert claimed(runs, "review:2").terms.id == "c"


def test_a_subjects_runs_go_in_the_order_they_were_queued(runs: Runs, time: FakeTime) -> None:
    """An older run that waits for its retry holds back the younger ones of its subject."""
    for name in ("a", "b"):
        runs.queue(terms(name))
    assert runs.requeue("a", claimed(runs).epoch, "FAILED", charged=True, after=seconds(5))
    assert runs.claim("review:1", KINDS) is None
    time.advance(5)
    assert claimed(runs).terms.id == "a"


def test_a_kind_that_is_not_driven_is_not_offered(runs: Runs) -> None:
    """A run is offered only to a sandbox that drives its kind."""
    runs.queue(terms())
    assert runs.claim("review:1", ["DIGEST"]) is None


def test_the_fence_refuses_a_stale_epoch(runs: Runs) -> None:
    """After the run was claimed again, the first holder can neither renew nor end it."""
    runs.queue(terms())
    claimed(runs)
    runs.take_away("a")
    assert claimed(runs).epoch == 2
    for write in (runs.renew, runs.require_current):
        with pytest.raises(ClaimNotHeld):
            write("a", 1)
    with pytest.raises(ClaimNotHeld):
        runs.end("a", 1, "COMPLETED")


def test_the_fence_refuses_an_expired_lease(runs: Runs, time: FakeTime) -> None:
    """A lease whose time has passed is refused, although nobody has taken the run back yet."""
    runs.queue(terms())
    claimed(runs)
    time.advance(59.999)
    runs.require_current("a", 1)
    time.advance(0.001)
    with pytest.raises(ClaimNotHeld):
        runs.require_current("a", 1)


def test_a_renewal_never_passes_the_deadline(runs: Runs, time: FakeTime) -> None:
    """A leased run is not renewed past its deadline."""
    runs.queue(terms(deadline=seconds(70)))
    start = time.moment
    claimed(runs)
    time.advance(30)
    assert runs.renew("a", 1).leased_until == start + seconds(70)


def test_the_reaper_takes_an_expired_lease_back(runs: Runs, time: FakeTime) -> None:
    """A lost lease goes back to the queue, spends one attempt and changes no epoch."""
    runs.queue(terms())
    run = claimed(runs)
    time.advance(60)
    runs.reap()
    assert (run.state, run.epoch, run.attempt) == (State.QUEUED, 1, 1)


def test_the_reaper_ends_a_run_at_its_limit(runs: Runs, time: FakeTime) -> None:
    """The third lost lease of three attempts ends the run."""
    run = runs.queue(terms())
    for _ in range(3):
        assert claimed(runs) is run
        time.advance(60)
    runs.reap()
    assert (run.state, run.outcome, run.attempt) == (State.ENDED, "LOST", 3)


def test_the_reaper_ends_a_run_at_its_deadline(runs: Runs, time: FakeTime) -> None:
    """The deadline ends a run even while its lease is live."""
    runs.queue(terms())
    run = claimed(runs)
    assert runs.move_deadline("a", time.moment + seconds(5))
    time.advance(5)
    runs.reap()
    assert (run.state, run.outcome) == (State.ENDED, "DEADLINE")


def test_a_deadline_only_moves_earlier(runs: Runs, time: FakeTime) -> None:
    """A later deadline is not taken, and a queued run has none to move."""
    runs.queue(terms(deadline=seconds(600)))
    assert not runs.move_deadline("a", time.moment)
    run = claimed(runs)
    assert not runs.move_deadline("a", time.moment + seconds(601))
    assert runs.move_deadline("a", time.moment + seconds(100))
    assert run.deadline == time.moment + seconds(100)


def test_a_requeue_clears_the_deadline(runs: Runs, time: FakeTime) -> None:
    """The next claim counts its own deadline."""
    runs.queue(terms(deadline=seconds(600)))
    run = claimed(runs)
    runs.requeue("a", 1, "INTERRUPTED", charged=False, after=seconds(0))
    assert (run.deadline, run.attempt) == (None, 0)
    time.advance(50)
    assert claimed(runs).deadline == time.moment + seconds(600)


def test_a_repeated_end_changes_nothing(runs: Runs) -> None:
    """A repeated end is told so, also when the first one gave the run back and somebody holds it again."""
    runs.queue(terms())
    claimed(runs)
    assert runs.requeue("a", 1, "INTERRUPTED", charged=False, after=seconds(0))
    run = claimed(runs)
    assert not runs.requeue("a", 1, "INTERRUPTED", charged=False, after=seconds(0))
    assert (run.state, run.epoch) == (State.LEASED, 2)
    assert runs.end("a", 2, "COMPLETED")
    assert not runs.end("a", 2, "COMPLETED")
    assert run.outcome == "COMPLETED"


def test_a_run_that_nobody_starts_ends(runs: Runs, time: FakeTime) -> None:
    """Past its start window a run ends as NOT_STARTED, but not while it waits for its subject."""
    first = runs.queue(terms("a", start_within=seconds(30)))
    second = runs.queue(terms("b", start_within=seconds(30)))
    claimed(runs)
    time.advance(31)
    runs.reap()
    assert (first.state, second.state) == (State.LEASED, State.QUEUED)
    runs.end("a", 1, "COMPLETED")
    runs.reap()
    assert (second.state, second.outcome) == (State.ENDED, "NOT_STARTED")


def test_an_unknown_run_is_not_found(runs: Runs) -> None:
    """A run that does not exist is a 404, not a lost claim."""
    with pytest.raises(Rejected) as caught:
        runs.require_current("z", 1)
    assert caught.value.status == 404


class RunMachine(RuleBasedStateMachine):
    """Whatever holders, reaper and time do, the invariants hold."""

    made = Bundle("made")

    def __init__(self) -> None:
        super().__init__()
        self.time = FakeTime()
        self.runs = Runs(self.time, silent)
        self.claims = 0
        self.seen: dict[str, AgentRun] = {}
        self.before: dict[str, tuple[State, int, datetime | None, int]] = {}

    @rule(target=made, subject=st.sampled_from(["s", "t"]), window=st.sampled_from([None, 20]))
    def queue(self, subject: str, window: int | None) -> str:
        name = f"run-{len(self.seen)}"
        within = None if window is None else seconds(window)
        given = terms(name, subject, lease=seconds(10), deadline=seconds(25), start_within=within, attempts=2)
        self.seen[name] = self.runs.queue(given)
        return name

    @rule(subject=st.sampled_from(["s", "t"]))
    def claim(self, subject: str) -> None:
        before = {name: run.epoch for name, run in self.seen.items()}
        run = self.runs.claim(subject, KINDS)
        grown = [name for name, old in before.items() if self.seen[name].epoch != old]
        assert grown == ([] if run is None else [run.terms.id])
        if run is not None:
            assert run.epoch == before[run.terms.id] + 1
            older = [r for r in self.runs if r.terms.subject == subject and r.state is State.QUEUED]
            assert all(int(run.terms.id[4:]) < int(other.terms.id[4:]) for other in older)

    @rule(name=made, back=st.integers(0, 2), what=st.sampled_from(["renew", "end", "requeue", "charge"]))
    def write(self, name: str, back: int, what: str) -> None:
        run = self.seen[name]
        epoch = run.epoch - back
        holds = run.state is State.LEASED and back == 0
        holds = holds and run.leased_until is not None and run.leased_until > self.time.moment
        try:
            match what:
                case "renew":
                    self.runs.renew(name, epoch)
                case "end":
                    holds |= not self.runs.end(name, epoch, "COMPLETED")
                case _:
                    charged = what == "charge"
                    holds |= not self.runs.requeue(name, epoch, "FAILED", charged=charged, after=seconds(0))
        except ClaimNotHeld:
            assert not holds or (run.deadline is not None and run.deadline <= self.time.moment)
        else:
            assert holds

    @rule(name=made, ahead=st.integers(-5, 40))
    def move_deadline(self, name: str, ahead: int) -> None:
        self.runs.move_deadline(name, self.time.moment + seconds(ahead))

    @rule(name=made)
    def take_away(self, name: str) -> None:
        self.runs.take_away(name)

    @rule(passed=st.integers(1, 15))
    def wait(self, passed: int) -> None:
        self.time.advance(passed)

    @rule()
    def reap(self) -> None:
        self.runs.reap()
        for run in self.runs:
            assert run.state is not State.LEASED or (run.leased_until or self.time.moment) > self.time.moment

    @invariant()
    def one_leased_a_subject(self) -> None:
        leased = [run.terms.subject for run in self.runs if run.state is State.LEASED]
        assert len(leased) == len(set(leased))

    @invariant()
    def only_legal_moves(self) -> None:
        for name, run in self.seen.items():
            now = (run.state, run.epoch, run.deadline, run.attempt)
            state, epoch, deadline, attempt = self.before.get(name, now)
            assert epoch <= run.epoch <= epoch + 1
            assert attempt <= run.attempt <= 2
            assert state is not State.ENDED or now == (state, epoch, deadline, attempt)
            if state is run.state is State.LEASED and epoch == run.epoch and deadline is not None:
                assert run.deadline is not None
                assert run.deadline <= deadline
            self.before[name] = now


TestRunMachine = RunMachine.TestCase
TestRunMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
