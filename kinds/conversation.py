"""The runners of `DIGEST` and `TURN`: the captured facts, the conversation program, the answer.

They run beside the token, and believe nothing that the program left: its answer is read through no link and
within a bound, and judged again, before it goes with the end (docs/kinds.md, "DIGEST and TURN").
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio.to_thread
from pydantic import ValidationError

from driver.errors import KindFailed
from driver.exits import ProgramExit, meaning
from driver.gateway.wire import Context
from driver.kind import HeldRun, Outcome, ProgramEnd
from kinds.conversation_context import Answer, DigestContext, TurnContext, problem_with, stated
from kinds.delivery import Progress, bundled_command, run_with_door, worked, workspace_of
from kinds.programs.confine import Confined
from kinds.programs.errors import ToolRefused
from kinds.staging import stage

FACTS: Final = "work/conversation.json"
ANSWER: Final = "out/answer.json"

_BUNDLED: Final = "kinds.programs.digest"
# What JSON can make of one character: a pair of escapes.
_CHARACTER_BYTES: Final = 12
_AROUND_BYTES: Final = 64 * 1024


class Digest:
    """Answers from the captured facts, without a question."""

    async def run(self, held: HeldRun) -> Outcome:
        return await _Conversation(held, await _stated(held.context, DigestContext)).run()


class Turn:
    """Answers a question from the captured facts."""

    async def run(self, held: HeldRun) -> Outcome:
        return await _Conversation(held, await _stated(held.context, TurnContext)).run()


async def _stated(context: Context, model: type[DigestContext]) -> DigestContext:
    # Megabytes of facts would hold the event loop for too long.
    try:
        return await anyio.to_thread.run_sync(stated, model, context.model_extra or {})
    except ValidationError as error:
        raise KindFailed(ProgramExit.BAD_ENVELOPE, f"context: {problem_with(error)}") from error


class _Conversation:
    """One conversation; used once. `answer` is set once the program has ended well and left one that is allowed."""

    def __init__(self, held: HeldRun, context: DigestContext) -> None:
        self._held = held
        self._context = context
        self._answer: Answer | None = None

    async def run(self) -> Outcome:
        end, answer = (await worked(self._held, self._work)).ended, self._answer
        self._held.log.info(
            "conversation.ended",
            exit=end.exit,
            reason=end.reason,
            characters=len(answer.text) if answer else None,
            facts=len(answer.fact_ids) if answer else None,
        )
        if answer is None:
            return Outcome("FAILED", exit=end.exit, reason=end.reason or meaning(end.exit))
        return Outcome("COMPLETED", exit=end.exit, answer=answer.model_dump())

    async def _work(self, progress: Progress) -> None:
        workspace = self._held.workspace
        await workspace_of(workspace.clear())
        try:
            await anyio.to_thread.run_sync(self._stage, workspace.layout.root)
        except OSError as error:
            raise KindFailed(ProgramExit.NO_OUTPUT, f"the facts cannot be staged: {error.strerror}") from error
        self._held.log.info("conversation.staged", facts=len(self._context.facts))
        end = await run_with_door(self._held, command(self._held), "answer.json")
        if end.exit == ProgramExit.COMPLETE:
            try:
                self._answer = await anyio.to_thread.run_sync(_answer, workspace.layout.root, self._context)
            except ValueError as error:
                end = ProgramEnd(ProgramExit.NO_OUTPUT, str(error))
        progress.end = end

    def _stage(self, root: Path) -> None:
        stage(root, FACTS, self._context.model_dump_json(indent=1).encode() + b"\n")


def command(held: HeldRun) -> Sequence[str]:
    """The conversation program's command. A command that is not the bundled one gets no arguments of ours."""
    model = held.context.model
    tokens = () if model.context_tokens is None else ("--context-tokens", str(model.context_tokens))
    return bundled_command(held.bundled.digest, _BUNDLED, "--facts", FACTS, "--wire", model.wire, *tokens)


def _answer(root: Path, context: DigestContext) -> Answer:
    """The answer that the program left, judged. Raises ValueError, saying what is wrong with it."""
    limit = _AROUND_BYTES + _CHARACTER_BYTES * (context.answer_chars + sum(len(fact.id) for fact in context.facts))
    try:
        with Confined(root).file(ANSWER) as file:
            data = file.read(limit + 1)
    except ToolRefused as error:
        raise ValueError(str(error)) from error
    if len(data) > limit:
        raise ValueError(f"{ANSWER} is over {limit:,} bytes")
    try:
        answer = Answer.model_validate_json(data)
        answer.require_allowed(context)
    except ValidationError as error:
        raise ValueError(f"{ANSWER}: {problem_with(error)}") from error
    except ValueError as error:
        raise ValueError(f"{ANSWER}: {error}") from error
    return answer
