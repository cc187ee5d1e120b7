"""The runner of `REVIEW_COMPOSE`: workspace, composition request, change view, the composing program, the result.

Like the runner of a review it runs beside the token and touches nothing that the model says (docs/kinds.md,
"REVIEW_COMPOSE").
"""

import json
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

import anyio.to_thread
from pydantic import Field, StringConstraints

from driver.errors import KindFailed
from driver.exits import ProgramExit
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
    validated,
    worked,
    workspace_of,
    wrong_context,
)
from kinds.staging import stage

REQUEST_VERSION: Final = 1

_BUNDLED: Final = "kinds.programs.compose"
_RESULT: Final = "feedback.json"

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class Citation(Message):
    """Lines of a file, relative to the workspace."""

    path: str = Field(min_length=1, max_length=4096)
    start_line: int = Field(ge=1)
    end_line: int = Field(ge=1)
    quote: str | None = Field(None, max_length=20_000)


class AdmittedObservation(Message):
    """One observation that the gateway admitted, with the id that it gave."""

    id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,200}$")]
    practice_slug: Name
    outcome: Literal["MET", "NOT_MET", "NOT_APPLICABLE", "UNDETERMINED"]
    severity: Literal["MINOR", "MAJOR", "CRITICAL"] | None = None
    summary: str = Field(min_length=1, max_length=20_000)
    citations: list[Citation] = Field(max_length=50)


class Channel(Message):
    """How much one channel takes: units, and characters of one text."""

    max_units: int = Field(ge=0, le=200)
    max_characters: int = Field(ge=1, le=20_000)


class Channels(Message):
    """The bounds of both channels; a channel that the gateway does not name has these."""

    # Made when they are needed: a model that is used at import has its schema built then.
    inline: Channel = Field(default_factory=lambda: Channel(max_units=30, max_characters=2_000))
    summary: Channel = Field(default_factory=lambda: Channel(max_units=30, max_characters=4_000))


class ComposeContext(Message):
    """What the context of a REVIEW_COMPOSE has besides the common part.

    `digest` names the admitted observations, each of which is an AdmittedObservation; `history` is earlier feedback, in
    whatever shape the gateway has.
    """

    task: str = Field(default="task.json", min_length=1, max_length=4096)
    observations: list[Any] = Field(max_length=1_000)
    digest: Name
    channels: Channels = Field(default_factory=Channels)
    history: list[dict[str, Any]] = Field(default_factory=list, max_length=1_000)


def request_of(context: ComposeContext) -> bytes:
    """The composition request as the program reads it, as JSON.

    Blocks. Observation by observation, so that other threads have their turns: large ones take half a second.
    Raises KindFailed (exit 42), naming the field.
    """
    ids: set[str] = set()
    observations = []
    for number, given in enumerate(context.observations):
        observation = validated(AdmittedObservation, given, "observations", number)
        if observation.id in ids:
            raise wrong_context("another observation has this id", "observations", number, "id")
        ids.add(observation.id)
        observations.append(json.dumps(observation.model_dump(exclude_none=True)))
    history = map(json.dumps, context.history)
    others = {"schemaVersion": REQUEST_VERSION, **context.model_dump(include={"digest", "channels"})}
    lists = f'"observations": [{", ".join(observations)}], "history": [{", ".join(history)}]'
    return f"{json.dumps(others)[:-1]}, {lists}}}".encode("ascii")


class Compose:
    """Composes the feedback of one review and delivers what `out/` holds, whatever became of the composing."""

    async def run(self, held: HeldRun) -> Outcome:
        context = own_part(ComposeContext, held.context)
        request = await anyio.to_thread.run_sync(request_of, context)
        progress = await worked(held, partial(_work, held, context, request))
        end = progress.ended
        held.log.info("compose.composed", exit=end.exit, reason=end.reason)
        return await delivered(held, end, workspace=progress.workspace)


async def _work(held: HeldRun, context: ComposeContext, request: bytes, progress: Progress) -> None:
    reused = await workspace_of(held.workspace.reuse_or_prepare())
    progress.workspace = True
    envelope = await envelope_of(held, context.task)
    await _stage(held, envelope.composition_request, request)
    held.log.info("compose.prepared", observations=len(context.observations), job=envelope.job_id, reused=reused)
    await derive_change(held, envelope)
    progress.end = await run_with_door(held, command(held, context.task), _RESULT)


async def _stage(held: HeldRun, location: str, request: bytes) -> None:
    try:
        await anyio.to_thread.run_sync(stage, held.workspace.layout.root, location, request)
    except OSError as error:
        reason = f"the composition request cannot be put at {location} ({error.strerror})"
        raise KindFailed(ProgramExit.UNHANDLED, reason) from error


def command(held: HeldRun, task: str) -> Sequence[str]:
    """The composing program's command. A command that is not the bundled one gets no arguments of ours."""
    model = held.context.model
    known = () if model.context_tokens is None else ("--context-tokens", str(model.context_tokens))
    return bundled_command(held.bundled.compose, _BUNDLED, "--task", task, "--wire", model.wire, *known)
