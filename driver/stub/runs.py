"""The runs of the stub: who may drive which, until when.

A run is QUEUED, LEASED or ENDED, and ENDED is final. A claim takes the next epoch and nothing else changes
it. `attempt` counts only what spent the retry budget: a lost lease, or an end that is charged. At most one
run of a subject is leased, and a subject's runs are claimed in the order they were queued
(docs/stub.md, "Runs").

Plain synchronous state: nothing here waits, so each call is one transaction.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol

from driver.stub.conversations import CONVERSATION_KINDS
from driver.stub.errors import ClaimNotHeld, Rejected

YIELDING: Final = ("DIGEST",)
"""Kinds whose queued runs wait for the other queued runs of their subject."""


class State(StrEnum):
    QUEUED = "QUEUED"
    LEASED = "LEASED"
    ENDED = "ENDED"


class Record(Protocol):
    def __call__(self, event: str, **fields: Any) -> None: ...


@dataclass(frozen=True)
class RunTerms:
    """What never changes about a run. `attempts` is how many tries it has in all."""

    id: str
    kind: str
    subject: str
    lease: timedelta
    deadline: timedelta | None = None
    start_within: timedelta | None = None
    attempts: int = 3
    retry_after: timedelta = timedelta(0)


@dataclass
class AgentRun:
    """One run. `ended_epochs` are the claims that their own holder ended."""

    terms: RunTerms
    due: datetime
    state: State = State.QUEUED
    epoch: int = 0
    attempt: int = 0
    leased_until: datetime | None = None
    deadline: datetime | None = None
    outcome: str | None = None
    ended_epochs: set[int] = field(default_factory=set)

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.terms.id,
            "kind": self.terms.kind,
            "subject": self.terms.subject,
            "state": self.state,
            "epoch": self.epoch,
            "attempt": self.attempt,
            "due": self.due.isoformat(),
            "leasedUntil": self.leased_until and self.leased_until.isoformat(),
            "deadline": self.deadline and self.deadline.isoformat(),
            "outcome": self.outcome,
        }


class Runs:
    """All runs, oldest first. `record` hears of each move; at most `turns` conversation runs are leased at one time."""

    def __init__(self, now: Callable[[], datetime], record: Record, *, turns: int | None = None) -> None:
        self._now = now
        self._record = record
        self._turns = turns
        self._runs: dict[str, AgentRun] = {}

    def __iter__(self) -> Iterator[AgentRun]:
        return iter(self._runs.values())

    def get(self, run_id: str) -> AgentRun:
        """The run; Rejected (404) when there is none of that id."""
        run = self._runs.get(run_id)
        if run is None:
            raise Rejected(404, "run_unknown", "there is no such run")
        return run

    def queue(self, terms: RunTerms) -> AgentRun:
        """Add a run at the end of its subject's queue."""
        if terms.id in self._runs:
            raise ValueError(f"run {terms.id} exists")
        run = AgentRun(terms, due=self._now())
        self._runs[terms.id] = run
        self._tell("run.queued", run)
        return run

    def continue_as(self, run_id: str, terms: RunTerms) -> AgentRun:
        """Queue the next step of the work of an ended run, as a new run with terms of its own.

        Its epochs go on from the ended run's, so that no claim of either has the epoch of another. It is no retry, so
        it begins with the attempts that were spent and spends none. ValueError for a run that has not ended, or of
        another subject.
        """
        ended = self.get(run_id)
        if ended.state is not State.ENDED or terms.subject != ended.terms.subject:
            raise ValueError(f"run {run_id} cannot be continued as {terms.id}")
        run = self.queue(terms)
        run.epoch, run.attempt = ended.epoch, ended.attempt
        self._tell("run.continues", run, ended=run_id)
        return run

    def restore(self, runs: Iterable[AgentRun]) -> None:
        """Take up the runs of a stub before this one, as they were."""
        self._runs = {run.terms.id: run for run in runs}

    def next_of(self, subject: str) -> AgentRun | None:
        """The run that the subject's next claim would take: the oldest that does not yield, due or not, or None."""
        of_subject = [run for run in self if run.terms.subject == subject and run.state is not State.ENDED]
        if any(run.state is State.LEASED for run in of_subject):
            return None
        return min(of_subject, key=lambda run: run.terms.kind in YIELDING, default=None)

    def claim(self, subject: str, kinds: Collection[str]) -> AgentRun | None:
        """Lease the subject's next run, if it is due, of one of the kinds and within the cap of its kind."""
        self.reap()
        run = self.next_of(subject)
        now = self._now()
        if run is None or run.due > now or run.terms.kind not in kinds or self._is_capped(run):
            return None
        run.state = State.LEASED
        run.epoch += 1
        run.deadline = now + run.terms.deadline if run.terms.deadline else None
        run.leased_until = self._lease_end(run, now)
        self._tell("run.leased", run)
        return run

    def require_current(self, run_id: str, epoch: int) -> AgentRun:
        """The fence of every write: refuses a stale epoch, and an expired lease whatever its epoch."""
        run = self.get(run_id)
        if run.state is not State.LEASED or run.epoch != epoch:
            raise ClaimNotHeld(f"epoch {epoch} does not hold the run")
        if run.leased_until is None or run.leased_until <= self._now():
            raise ClaimNotHeld("the lease has expired")
        return run

    def renew(self, run_id: str, epoch: int) -> AgentRun:
        """A new lease for the holder, never past the deadline."""
        run = self.require_current(run_id, epoch)
        now = self._now()
        if run.deadline is not None and run.deadline <= now:
            raise ClaimNotHeld("the deadline has passed")
        run.leased_until = self._lease_end(run, now)
        self._tell("run.renewed", run)
        return run

    def end(self, run_id: str, epoch: int, outcome: str) -> bool:
        """The holder ends the run for good. False when this claim was ended by its holder before."""
        if epoch in self.get(run_id).ended_epochs:
            return False
        run = self.require_current(run_id, epoch)
        run.ended_epochs.add(epoch)
        self._finish(run, outcome)
        return True

    def requeue(self, run_id: str, epoch: int, outcome: str, *, charged: bool, after: timedelta) -> bool:
        """The holder gives the run back, due again `after` now. Charged at the limit, it ends instead.

        False when this claim was ended by its holder before.
        """
        if epoch in self.get(run_id).ended_epochs:
            return False
        run = self.require_current(run_id, epoch)
        run.ended_epochs.add(epoch)
        self._give_back(run, outcome, charged=charged, after=after)
        return True

    def move_deadline(self, run_id: str, deadline: datetime) -> bool:
        """Within a claim a deadline only moves earlier. False when that is not what was asked."""
        run = self.get(run_id)
        if run.state is not State.LEASED or (run.deadline is not None and deadline >= run.deadline):
            return False
        run.deadline = deadline
        self._tell("run.deadline_moved", run)
        return True

    def take_away(self, run_id: str) -> bool:
        """Take the claim back as if its lease were lost. False when nobody holds the run."""
        run = self.get(run_id)
        if run.state is not State.LEASED:
            return False
        self._give_back(run, "LOST", charged=True, after=timedelta(0))
        return True

    def reap(self) -> None:
        """End what is past its deadline or start window; take expired leases back, which spends an attempt."""
        now = self._now()
        for run in self:
            if run.state is State.LEASED:
                if run.deadline is not None and run.deadline <= now:
                    self._finish(run, "DEADLINE")
                elif run.leased_until is not None and run.leased_until <= now:
                    self._give_back(run, "LOST", charged=True, after=timedelta(0))
            elif run.state is State.QUEUED and self._not_started(run, now):
                self._finish(run, "NOT_STARTED")

    def _is_capped(self, run: AgentRun) -> bool:
        """Digests and turns share one cap."""
        if self._turns is None or run.terms.kind not in CONVERSATION_KINDS:
            return False
        return sum(one.state is State.LEASED and one.terms.kind in CONVERSATION_KINDS for one in self) >= self._turns

    def _not_started(self, run: AgentRun, now: datetime) -> bool:
        if run.terms.start_within is None or now < run.due + run.terms.start_within:
            return False
        return self.next_of(run.terms.subject) is run

    def _lease_end(self, run: AgentRun, now: datetime) -> datetime:
        end = now + run.terms.lease
        return end if run.deadline is None else min(end, run.deadline)

    def _give_back(self, run: AgentRun, outcome: str, *, charged: bool, after: timedelta) -> None:
        run.attempt += charged
        if charged and run.attempt >= run.terms.attempts:
            self._finish(run, outcome)
            return
        run.state = State.QUEUED
        run.due = self._now() + after
        run.leased_until = run.deadline = None
        self._tell("run.requeued", run, because=outcome)

    def _finish(self, run: AgentRun, outcome: str) -> None:
        run.state = State.ENDED
        run.outcome = outcome
        run.leased_until = None
        self._tell("run.ended", run)

    def _tell(self, event: str, run: AgentRun, **fields: Any) -> None:
        self._record(event, run=run.terms.id, epoch=run.epoch, attempt=run.attempt, state=run.state, **fields)
