"""The runner of `REVIEW`: workspace, change view, hints, the measuring program, the result.

It runs beside the token and touches nothing that the model says: the measuring program does that, in a
process without the token (docs/kinds.md, "REVIEW").
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from pydantic import Field

from driver.gateway.wire import Message
from driver.kind import HeldRun, Outcome
from kinds.change import derive_change
from kinds.delivery import (
    Progress,
    bundled_command,
    delivered,
    envelope_of,
    own_part,
    run_with_door,
    worked,
    workspace_of,
)
from kinds.precompute import precompute

_BUNDLED: Final = "kinds.programs.measure"
_RESULT: Final = "result.json"


class ReviewContext(Message):
    """What the context of a REVIEW has besides the common part: where the task envelope lies."""

    task: str = Field(default="task.json", min_length=1, max_length=4096)


class Review:
    """Measures one change and delivers what `out/` holds, whatever became of the measuring."""

    async def run(self, held: HeldRun) -> Outcome:
        task = own_part(ReviewContext, held.context).task
        progress = await worked(held, partial(_work, held, task))
        end = progress.ended
        held.log.info("review.measured", exit=end.exit, reason=end.reason)
        return await delivered(held, end, workspace=progress.workspace)


async def _work(held: HeldRun, task: str, progress: Progress) -> None:
    await workspace_of(held.workspace.prepare())
    progress.workspace = True
    envelope = await envelope_of(held, task)
    held.log.info("review.prepared", pull_request=envelope.pull_request_number, job=envelope.job_id)
    await derive_change(held, envelope)
    await precompute(held, envelope)
    progress.end = await run_with_door(held, command(held, task), _RESULT)


def command(held: HeldRun, task: str) -> Sequence[str]:
    """The measuring program's command. A command that is not the bundled one gets no arguments of ours."""
    model = held.context.model
    known = () if model.context_tokens is None else ("--context-tokens", str(model.context_tokens))
    return bundled_command(
        held.bundled.review,
        _BUNDLED,
        *("--task", task),
        *("--wire", model.wire),
        *("--session-heap", str(held.bundled.session_heap)),
        *("--session-size", str(held.bundled.session_size)),
        *known,
    )
