"""The calls of docs/protocol.md that are not the model's: what each one does and answers."""

import hashlib
import math
import re
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import anyio.lowlevel
from pydantic import BaseModel, ValidationError

from driver.gateway.wire import CONTRACT, Claim, Context, End, Lease, ModelChoice, NextRequest, Run, Runtime
from driver.stub.answers import Answer, json_answer
from driver.stub.errors import Rejected
from driver.stub.numbers import whole_number
from driver.stub.observations import admit
from driver.stub.received import Received
from driver.stub.results import Result, digest_field, write_result
from driver.stub.runs import AgentRun
from driver.stub.state import GatewayState
from driver.stub.transfer import WRONG_DIGEST, archive_answer

M = TypeVar("M", bound=BaseModel)

MIB: Final = 1024 * 1024
RESULT_BYTES: Final = 64 * MIB
"""50 MiB of content and the heads of 10,000 entries."""

_LONGEST_WAIT: Final = 60.0
_PREFERENCE: Final = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})")


class Calls:
    """The calls about runs. Results are also written below `results`, if it is given."""

    def __init__(self, state: GatewayState, results: Path | None = None) -> None:
        self._state = state
        self._results = results

    async def next(self, received: Received) -> Answer:
        """`POST next`, held as long as `Prefer: wait=N` allows (RFC 7240)."""
        asked = parse(NextRequest, received.body)
        wait = _wait_of(received.exchange.request.header("prefer"))
        run: AgentRun | None = None
        with anyio.move_on_after(wait or None):
            while True:
                # A pull whose client has gone meanwhile must lease nothing.
                await anyio.lowlevel.checkpoint_if_cancelled()
                sandbox = self._state.sandboxes.admit(received.token)
                run = self._state.claim(sandbox, asked.kinds)
                if run is not None or not wait:
                    break
                with anyio.move_on_after(self._seconds_until_due(sandbox.subject)):
                    await self._state.journal.wait_added()
        return json_answer(self._claim(run)) if run is not None else self._no_work(received)

    async def renew(self, received: Received) -> Answer:
        """`POST renew`."""
        run = self._state.runs.renew(received.run_id, received.epoch)
        return json_answer(Lease(**self._times(run)))

    async def context(self, received: Received) -> Answer:
        """`GET context`: what every kind is told, and what the scenario adds."""
        run = self._state.runs.require_current(received.run_id, received.epoch)
        self._state.require_admitted(run)
        table, model = self._state.table(run), self._state.scenario.model
        common = Context(
            kind=run.terms.kind, model=ModelChoice(id=model.id, wire=model.wire), work_seconds=table.work_seconds
        )
        own = {"task": "task.json"} if run.terms.kind == "REVIEW" else {}
        return json_answer({**common.model_dump(), **own, **self._state.told(run)})

    async def runtime(self, received: Received) -> Answer:
        """`GET runtime`."""
        run = self._state.runs.require_current(received.run_id, received.epoch)
        archive = self._state.prepared.archive
        return json_answer(
            Runtime(
                contract=CONTRACT,
                workspace_bytes=archive.size,
                workspace_digest=WRONG_DIGEST if "wrong_digest" in received.strikes else archive.digest,
                result_bytes=RESULT_BYTES,
                upload_seconds=self._state.table(run).upload_seconds,
            )
        )

    async def workspace(self, received: Received) -> Answer:
        """`GET runtime/workspace`."""
        self._state.runs.require_current(received.run_id, received.epoch)
        return archive_answer(self._state.prepared.archive, received.exchange.request, received.strikes)

    async def observations(self, received: Received) -> Answer:
        """`POST runtime/observations`."""
        self._state.runs.require_current(received.run_id, received.epoch)
        admissions = admit(received.body, self._state.prepared.practices)
        self._state.admissions[received.run_id, received.epoch] = admissions
        return json_answer(admissions.answer)

    async def result(self, received: Received) -> Answer:
        """`POST runtime/result`."""
        request, state = received.exchange.request, self._state
        state.runs.require_current(received.run_id, received.epoch)
        exit = whole_number(request.header("x-agent-exit"))
        if exit is None or exit > 255:
            raise Rejected(400, "exit_missing", "X-Agent-Exit must be a number from 0 to 255")
        if request.header("content-length") is None:
            raise Rejected(411, "length_required", "Content-Length is required")
        state.results.require_new(received.run_id, received.epoch)
        hashed = await anyio.to_thread.run_sync(hashlib.sha256, received.body)
        result = Result(received.run_id, received.epoch, exit, digest_field(hashed.digest()), received.body)
        state.runs.require_current(received.run_id, received.epoch)
        state.results.keep(result, request.header("content-digest"))
        if self._results is not None:
            await anyio.to_thread.run_sync(write_result, self._results, result)
        state.journal.record("result.kept", **result.as_json())
        etag = f'"{WRONG_DIGEST}"' if "wrong_digest" in received.strikes else result.etag
        return Answer(204, (("etag", etag),))

    async def end(self, received: Received) -> Answer:
        """`POST end`. A repeat reads ALREADY_ENDED, also after the claim is over."""
        end = parse(End, received.body)
        sandbox = self._state.sandboxes.admit(received.token)
        refuse = "refuse" in received.strikes
        return json_answer(self._state.end(sandbox, received.run_id, received.epoch, end, refuse=refuse))

    def _claim(self, run: AgentRun) -> Claim:
        terms = run.terms
        named = Run(id=terms.id, kind=terms.kind, subject=terms.subject, epoch=run.epoch, attempt=run.attempt)
        return Claim(run=named, **self._times(run))

    def _times(self, run: AgentRun) -> dict[str, Any]:
        return {"now": self._state.now(), "leased_until": run.leased_until, "deadline": run.deadline}

    def _no_work(self, received: Received) -> Answer:
        """204; when the subject's next run is due later, Retry-After says when."""
        seconds = self._seconds_until_due(self._state.sandboxes.admit(received.token).subject)
        return Answer(204, (("retry-after", str(math.ceil(seconds))),) if seconds < math.inf else ())

    def _seconds_until_due(self, subject: str) -> float:
        """Infinite when no run waits for its time."""
        run = self._state.runs.next_of(subject)
        seconds = (run.due - self._state.now()).total_seconds() if run is not None else 0.0
        return seconds if seconds > 0 else math.inf


def parse(model: type[M], body: bytes) -> M:
    """The message in a body. Rejected (400), naming the field, when it is none."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise Rejected(400, "invalid_request", f"{where}: {first['msg']}") from None


def _wait_of(prefer: str | None) -> float:
    match = _PREFERENCE.search(prefer or "")
    return min(float(match[1]), _LONGEST_WAIT) if match else 0.0
