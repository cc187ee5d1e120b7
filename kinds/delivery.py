"""What the kinds have in common that run a program in a workspace and deliver what it left in `out/`.

The work may fail, be stopped at its deadline or with the driver; once there is a workspace, what `out/` holds is
delivered all the same, with the exit that says what became of it.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import anyio.to_thread
from pydantic import ValidationError

from driver.errors import NO_ROOM, KindFailed, ProgramError, WorkspaceError, no_room
from driver.exits import ProgramExit, meaning
from driver.gateway.wire import Context, Message
from driver.kind import HeldRun, Outcome, ProgramEnd, StopReason
from kinds.programs.envelope import EnvelopeError, TaskEnvelope, load

M = TypeVar("M", bound=Message)
T = TypeVar("T")

_STOPPED: Final = {
    StopReason.DEADLINE: "stopped at the work deadline",
    StopReason.STOPPING: "the sandbox is stopping",
}


@dataclass
class Progress:
    """How far the work came; read once it is over, however it ended. Without `workspace` there is no `out/` yet."""

    workspace: bool = False
    end: ProgramEnd | None = None

    @property
    def ended(self) -> ProgramEnd:
        """How it ended, once it is over."""
        if self.end is None:
            raise RuntimeError("the work ended without an end")
        return self.end


async def worked(held: HeldRun, work: Callable[[Progress], Awaitable[None]]) -> Progress:
    """Do the work of a run, which notes how far it came. The end is noted whatever became of the work.

    Raises the work's KindFailed when it came before there was a workspace. Whatever fails for want of room on a disk
    ends with the reason `disk`.
    """
    progress = Progress()
    with held.work() as section:
        try:
            await work(progress)
        except (KindFailed, OSError) as failure:
            full = no_room(failure)
            if not progress.workspace or not (full or isinstance(failure, KindFailed)):
                raise
            if full:
                held.log.error("run.no_room", error=str(failure))
            code = failure.exit if isinstance(failure, KindFailed) else ProgramExit.NO_OUTPUT
            progress.end = ProgramEnd(code, NO_ROOM if full else str(failure))
    if progress.end is None and section.stopped is not None:
        progress.end = ProgramEnd(section.stopped.exit, _STOPPED[section.stopped])
    return progress


async def delivered(held: HeldRun, end: ProgramEnd, *, workspace: bool) -> Outcome:
    """Deliver what `out/` holds with the end's exit, if there is a workspace; the run's outcome."""
    if workspace:
        await held.results.deliver(end.exit)
    if end.exit == ProgramExit.COMPLETE:
        return Outcome("COMPLETED", exit=end.exit)
    return Outcome("FAILED", exit=end.exit, reason=end.reason or meaning(end.exit))


def own_part(model: type[M], context: Context) -> M:
    """What a kind's context has besides the common part. Raises KindFailed (exit 42), naming the field."""
    return validated(model, context.model_extra or {})


def validated(model: type[M], value: object, *above: str | int) -> M:
    """A part of the context, which stands in it at `above`. Raises KindFailed (exit 42), naming the field."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise wrong_context(fault["msg"], *above, *fault["loc"]) from error


def wrong_context(problem: str, *where: str | int) -> KindFailed:
    """The failure of a run whose context is wrong in this field."""
    return KindFailed(ProgramExit.BAD_ENVELOPE, f"context: {'.'.join(map(str, where))}: {problem}")


async def workspace_of(ready: Awaitable[T]) -> T:
    """What preparing a workspace gives; a workspace that cannot be had is KindFailed (exit 1)."""
    try:
        return await ready
    except WorkspaceError as error:
        raise KindFailed(ProgramExit.NO_OUTPUT, str(error)) from error


async def envelope_of(held: HeldRun, task: str) -> TaskEnvelope:
    """The task envelope at `task` in the workspace. Raises KindFailed (exit 42)."""
    try:
        return await anyio.to_thread.run_sync(load, held.workspace.layout.root, task)
    except EnvelopeError as error:
        raise KindFailed(ProgramExit.BAD_ENVELOPE, str(error)) from error


def bundled_command(words: Sequence[str], module: str, *options: str) -> Sequence[str]:
    """A program's command; one that is not the bundled program of this module gets no options of ours."""
    return (*words, *options) if module in words else words


async def run_with_door(held: HeldRun, command: Sequence[str], result: str) -> ProgramEnd:
    """Run a program that may reach the model. It is complete only with a file of that name in `out/`."""
    layout = held.workspace.layout
    async with held.door():
        # Turned into an end inside: an error that leaves a door could come out as a group of errors.
        try:
            end = await held.programs.run(command, cwd=layout.root, door=True)
        except ProgramError as error:
            end = ProgramEnd(ProgramExit.NO_OUTPUT, str(error))
    if end.exit == ProgramExit.COMPLETE and not await anyio.to_thread.run_sync(_is_file, layout.out / result):
        return ProgramEnd(ProgramExit.NO_OUTPUT, f"the program ended with 0 and left no out/{result}")
    return end


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
