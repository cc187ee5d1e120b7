"""Everything the stub knows, and the moves that touch more than one part of it.

All of it is plain synchronous state: a move happens as a whole or not at all.
"""

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from driver.gateway.wire import DIGEST_NOT_ADMITTED, End, EndResult
from driver.stub.compositions import composition_of
from driver.stub.conversations import CONVERSATION_KINDS, calls_in_flight, context_of, require_answer
from driver.stub.errors import Rejected, TokenNotAccepted
from driver.stub.faults import Faults
from driver.stub.journal import Journal
from driver.stub.model.script import Script
from driver.stub.observations import Admissions
from driver.stub.remembered import Remembered
from driver.stub.results import Results
from driver.stub.runs import AgentRun, Runs
from driver.stub.sandboxes import Sandbox, Sandboxes
from driver.stub.scenario import RunTable, Scenario
from driver.stub.workspaces import Prepared


class GatewayState:
    """The state of one stub. `now` is the gateway's clock, `key` signs the tokens.

    With `before` it goes on from what another stub of the same scenario knew, whose key is taken over as well.
    """

    def __init__(
        self,
        scenario: Scenario,
        prepared: Prepared,
        *,
        now: Callable[[], datetime],
        key: bytes,
        before: Remembered | None = None,
    ) -> None:
        self.scenario = scenario
        self.prepared = prepared
        self.now = now
        self.journal = Journal(now)
        self.runs = Runs(now, self.journal.record, turns=scenario.capacity.turns)
        self._key = key if before is None else bytes.fromhex(before.key)
        self.sandboxes = Sandboxes(self._key, now, self.journal.record)
        self.results = Results(() if before is None else before.results)
        self.admissions: dict[tuple[str, int], Admissions] = {}
        self.ends: list[tuple[str, int, End]] = []
        self.faults = Faults(scenario.fault, None if before is None else before.calls)
        self.script = Script(scenario.model, now)
        self.in_flight: Counter[tuple[str, int]] = Counter()
        self._withdrawn: set[str] = set()
        self._tables: dict[str, RunTable] = {}
        if before is not None:
            self._restore(before)
        else:
            for number, table in enumerate(scenario.run, 1):
                run = self.runs.queue(table.terms(number))
                self._tables[run.terms.id] = table
        life = timedelta(seconds=scenario.sandbox.life_seconds)
        self.sandbox = self.sandboxes.ensure(scenario.sandbox.workspace, scenario.subject, life)

    def _restore(self, before: Remembered) -> None:
        self.runs.restore(before.runs)
        self.sandboxes.restore(before.sandboxes)
        self.admissions = {(run, epoch): admissions for run, epoch, admissions in before.admissions}
        self.ends = list(before.ends)
        self._withdrawn = set(before.withdrawn)
        self._tables = dict(before.tables)
        self.journal.record("stub.restarted")

    def remember(self) -> Remembered:
        """What a stub after this one has to know."""
        return Remembered(
            key=self._key.hex(),
            sandboxes=list(self.sandboxes),
            runs=list(self.runs),
            tables=dict(self._tables),
            admissions=[(run, epoch, admissions) for (run, epoch), admissions in self.admissions.items()],
            ends=list(self.ends),
            withdrawn=sorted(self._withdrawn),
            calls=self.faults.calls,
            results=list(self.results),
        )

    def table(self, run: AgentRun) -> RunTable:
        """What the scenario says about a run."""
        return self._tables[run.terms.id]

    def told(self, run: AgentRun) -> dict[str, Any]:
        """What the run's kind is told besides the common part, as far as the scenario decides it."""
        return {**context_of(run.terms.kind, run.terms.subject), **self.table(run).context}

    def withdraw(self, run_id: str) -> None:
        """Admission is withdrawn for good: the run's work is not wanted any more."""
        self._withdrawn.add(self.runs.get(run_id).terms.id)
        self.journal.record("admission.withdrawn", run=run_id)

    def require_admitted(self, run: AgentRun) -> None:
        """Rejected (403) when admission was withdrawn: before the work, and before each model call."""
        if run.terms.id in self._withdrawn:
            raise Rejected(403, DIGEST_NOT_ADMITTED, "the work is not wanted any more")

    def claim(self, sandbox: Sandbox, kinds: list[str]) -> AgentRun | None:
        """The next run of the sandbox's subject, leased to it. One that is not admitted any more ends instead."""
        run = self.runs.claim(sandbox.subject, self.scenario.sandbox.drives or kinds)
        if run is not None and run.terms.id in self._withdrawn:
            self.runs.end(run.terms.id, run.epoch, "REFUSED")
            return None
        if run is not None:
            self.sandboxes.use(sandbox)
        return run

    def require_claim(self, sandbox: Sandbox, run_id: str, epoch: int) -> AgentRun:
        """The run that a sandbox holds under `epoch`: 401 when it is another subject's, 409 when it is not held."""
        self.require_subject(sandbox, run_id)
        return self.runs.require_current(run_id, epoch)

    def require_subject(self, sandbox: Sandbox, run_id: str) -> None:
        """TokenNotAccepted when the run is another subject's."""
        if self.runs.get(run_id).terms.subject != sandbox.subject:
            raise TokenNotAccepted("the run is another subject's")

    def end(self, sandbox: Sandbox, run_id: str, epoch: int, end: End, *, refuse: bool = False) -> EndResult:
        """End a run or hand it on, as its outcome asks (docs/protocol.md, "Calls").

        With `refuse` a completion is no longer wanted: nothing is stored and the run is over.
        """
        self.require_subject(sandbox, run_id)
        if (refuse or run_id in self._withdrawn) and end.outcome == "COMPLETED":
            fresh = self.runs.end(run_id, epoch, "REFUSED")
            return EndResult(result="REFUSED", reason="no longer wanted") if fresh else _ALREADY
        self._judge(run_id, epoch, end)
        fresh = self._apply(run_id, epoch, end)
        if fresh:
            self.ends.append((run_id, epoch, end))
            if end.outcome == "COMPLETED":
                self._compose(run_id, epoch)
            if end.outcome == "UNISOLATED":
                self.sandboxes.take_back(sandbox)
        return EndResult(result="ENDED") if fresh else _ALREADY

    def _judge(self, run_id: str, epoch: int, end: End) -> None:
        """Rejected (422) when a conversation would be completed without an answer that its context allows."""
        run = self.runs.get(run_id)
        is_repeat = epoch in run.ended_epochs
        if end.outcome == "COMPLETED" and run.terms.kind in CONVERSATION_KINDS and not is_repeat:
            require_answer(end.answer, self.told(self.runs.require_current(run_id, epoch)))

    def _compose(self, run_id: str, epoch: int) -> None:
        """A completed review is followed by the composition of its feedback, in the same step."""
        run = self.runs.get(run_id)
        table = composition_of(run, self.table(run), self.admissions.get((run_id, epoch)))
        if table is not None:
            # Noted first: whoever waits for the run may ask for its table at once.
            self._tables[table.named(0)] = table
            self.runs.continue_as(run_id, table.terms(0))

    def _apply(self, run_id: str, epoch: int, end: End) -> bool:
        retry = self.runs.get(run_id).terms.retry_after
        match end.outcome:
            case "COMPLETED":
                return self.runs.end(run_id, epoch, end.outcome)
            case "FAILED" if end.reason == "erased" or run_id in self._withdrawn:
                return self.runs.end(run_id, epoch, end.outcome)
            case "FAILED":
                return self.runs.requeue(run_id, epoch, end.outcome, charged=True, after=retry)
            case "UNSUPPORTED":
                return self.runs.requeue(run_id, epoch, end.outcome, charged=False, after=retry)
            case "INTERRUPTED" | "UNISOLATED":
                return self.runs.requeue(run_id, epoch, end.outcome, charged=False, after=timedelta(0))

    def take_slot(self, run: AgentRun) -> tuple[str, int]:
        """Count one more model call of the attempt. Rejected (429) past its limit, before the provider."""
        attempt = (run.terms.id, run.epoch)
        if self.in_flight[attempt] >= (self.scenario.model.in_flight or calls_in_flight(run.terms.kind)):
            raise Rejected(
                429, "calls_in_flight", "too many model calls of this attempt", headers=(("retry-after", "1"),)
            )
        self.in_flight[attempt] += 1
        return attempt

    def as_json(self) -> dict[str, Any]:
        """The state for people and tests. No token is in it."""
        return {
            "now": self.now().isoformat(),
            "subject": self.scenario.subject,
            "sandboxes": [sandbox.as_json() for sandbox in self.sandboxes],
            "runs": [run.as_json() for run in self.runs],
            "results": [result.as_json() for result in self.results],
            "ends": [{"run": run, "epoch": epoch, **end.model_dump()} for run, epoch, end in self.ends],
            "admissions": [
                {"run": run, "epoch": epoch, "observations": a.observations, **a.answer.model_dump()}
                for (run, epoch), a in self.admissions.items()
            ],
            "callsInFlight": sum(self.in_flight.values()),
            "calls": self.faults.calls,
        }


_ALREADY = EndResult(result="ALREADY_ENDED")
