"""The runner of `REVIEW`: workspace, change view, hints, the measuring program, the result.

It runs beside the token and touches nothing that the model says: the measuring program does that, in a
process without the token (docs/kinds.md, "REVIEW").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import anyio.to_thread
from pydantic import Field, ValidationError

from driver.errors import KindFailed, ProgramError, WorkspaceError
from driver.exits import ProgramExit, meaning
from driver.gateway.wire import Context, Message
from driver.kind import HeldRun, Outcome, ProgramEnd, StopReason
from driver.layout import Layout
from kinds.change import derive_change
from kinds.precompute import precompute
from kinds.programs.envelope import EnvelopeError, TaskEnvelope, load

_BUNDLED: Final = "kinds.programs.measure"
_STOPPED: Final = {
    StopReason.DEADLINE: "stopped at the work deadline",
    StopReason.STOPPING: "the sandbox is stopping",
}


class ReviewContext(Message):
    """What the context of a REVIEW has besides the common part: where the task envelope lies."""

    task: str = Field(default="task.json", min_length=1, max_length=4096)


@dataclass
class _Progress:
    """How far the work came; read once it is over, however it ended."""

    workspace: bool = False
    end: ProgramEnd | None = None


class Review:
    """Measures one change and delivers what `out/` holds, whatever became of the measuring."""

    async def run(self, held: HeldRun) -> Outcome:
        task = _task_of(held.context)
        progress = _Progress()
        with held.work() as work:
            try:
                await _work(held, task, progress)
            except KindFailed as failure:
                if not progress.workspace:
                    raise
                progress.end = ProgramEnd(failure.exit, failure.reason)
        end = progress.end or _stopped(work.stopped)
        held.log.info("review.measured", exit=end.exit, reason=end.reason)
        if progress.workspace:
            await held.results.deliver(end.exit)
        if end.exit == ProgramExit.COMPLETE:
            return Outcome("COMPLETED", exit=end.exit)
        return Outcome("FAILED", exit=end.exit, reason=end.reason or meaning(end.exit))


def _task_of(context: Context) -> str:
    try:
        return ReviewContext.model_validate(context.model_extra or {}).task
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise KindFailed(ProgramExit.BAD_ENVELOPE, f"context: {where}: {fault['msg']}") from error


def _stopped(reason: StopReason | None) -> ProgramEnd:
    if reason is None:
        raise RuntimeError("the work ended without an end")
    return ProgramEnd(reason.exit, _STOPPED[reason])


async def _work(held: HeldRun, task: str, progress: _Progress) -> None:
    await _prepare(held)
    progress.workspace = True
    envelope = await _envelope(held, task)
    held.log.info("review.prepared", pull_request=envelope.pull_request_number, job=envelope.job_id)
    await derive_change(held, envelope)
    await precompute(held, envelope)
    progress.end = await _measure(held, task)


async def _prepare(held: HeldRun) -> None:
    try:
        await held.workspace.prepare()
    except WorkspaceError as error:
        raise KindFailed(ProgramExit.NO_OUTPUT, str(error)) from error


async def _envelope(held: HeldRun, task: str) -> TaskEnvelope:
    try:
        return await anyio.to_thread.run_sync(load, held.workspace.layout.root, task)
    except EnvelopeError as error:
        raise KindFailed(ProgramExit.BAD_ENVELOPE, str(error)) from error


async def _measure(held: HeldRun, task: str) -> ProgramEnd:
    layout = held.workspace.layout
    async with held.door():
        # Turned into an end inside: an error that leaves a door could come out as a group of errors.
        try:
            end = await held.programs.run(command(held, task), cwd=layout.root, door=True)
        except ProgramError as error:
            end = ProgramEnd(ProgramExit.NO_OUTPUT, str(error))
    if end.exit == ProgramExit.COMPLETE and not await anyio.to_thread.run_sync(_has_result, layout):
        return ProgramEnd(ProgramExit.NO_OUTPUT, "the program ended with 0 and left no out/result.json")
    return end


def command(held: HeldRun, task: str) -> Sequence[str]:
    """The measuring program's command. A command that is not the bundled one gets no arguments of ours."""
    words = held.bundled.review
    if _BUNDLED not in words:
        return words
    return (
        *words,
        *("--task", task),
        *("--wire", held.context.model.wire),
        *("--session-heap", str(held.bundled.session_heap)),
        *("--session-size", str(held.bundled.session_size)),
    )


def _has_result(layout: Layout) -> bool:
    result = layout.out / "result.json"
    return result.is_file() and not result.is_symlink()
