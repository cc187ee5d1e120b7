"""One measuring session: a conversation about the practices of one plan."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio.from_thread
import anyio.to_thread

from kinds.programs import brief, observations, progress
from kinds.programs.citations import Citation, check
from kinds.programs.dialogue import Dialogue
from kinds.programs.errors import DoorClosed
from kinds.programs.heap import Room
from kinds.programs.model import ModelClient
from kinds.programs.observations import Book, ObservationRefused, Verdict
from kinds.programs.practices import Plan
from kinds.programs.session_log import SessionLog
from kinds.programs.tools import Toolkit
from kinds.programs.wires import ToolCall


@dataclass(frozen=True)
class Desk:
    """What all sessions work with. `recorded` is called after each batch that changed the book.

    `context_tokens` is the model's context, or None where nobody told.
    """

    model: ModelClient
    toolkit: Toolkit
    book: Book
    repository: str
    recorded: Callable[[], None]
    context_tokens: int | None = None


class Session:
    """One session over one plan. `run` ends by itself; whatever ends it, the book holds what was recorded."""

    def __init__(self, plan: Plan, desk: Desk, room: Room, log: SessionLog) -> None:
        self._plan = plan
        self._desk = desk
        self._log = log
        self._dialogue = Dialogue(
            plan.name,
            self,
            model=desk.model,
            toolkit=desk.toolkit,
            room=room,
            log=log,
            context_tokens=desk.context_tokens,
            so_far=self.so_far,
        )

    async def run(self, first_message: str) -> None:
        """Measure. Raises DoorClosed when no call of the run will work any more."""
        try:
            talk = self._dialogue.run(first_message)
            del first_message  # see Dialogue.run
            reason = await talk
        except DoorClosed as error:
            self._end(f"the door takes no more calls: {error}")
            raise
        self._end(reason)

    def left(self) -> list[str]:
        """The practices without a result (dialogue.Part)."""
        return self._desk.book.open(self._plan.slugs)

    def reminder(self, left: list[str]) -> str:
        """See dialogue.Part."""
        return brief.reminder(left)

    def so_far(self) -> str:
        """What a model is told again whose older results were left out."""
        recorded = [slug for slug in self._plan.slugs if slug in self._desk.book.recorded]
        lost = [slug for slug in self._plan.slugs if slug in self._desk.book.not_reached]
        states = {"Recorded so far": recorded, "Not reached": lost, "Still open": self.left()}
        return " ".join(f"{state}: {', '.join(slugs) or 'nothing'}." for state, slugs in states.items())

    async def take(self, call: ToolCall) -> str | None:
        """Record what `report_observation` brings (dialogue.Part)."""
        if call.name != observations.TOOL.name:
            return None
        try:
            items = observations.items(call.arguments)
        except ObservationRefused as error:
            self._log.refused(str(error))
            progress.say(f"[{self._plan.name}] refused: {error}")
            return f"refused: {error}"
        checks = self._desk.toolkit.checks
        verdicts = [await anyio.to_thread.run_sync(self._record, item, limiter=checks) for item in items]
        self._desk.recorded()
        for verdict in verdicts:
            self._log.judged(verdict, "an observation")
        left = ", ".join(self.left()) or "none"
        return "\n".join([*(_reply(n, verdict) for n, verdict in enumerate(verdicts, 1)), f"Still open: {left}."])

    def _record(self, item: Any) -> Verdict:
        return self._desk.book.report(self._plan.slugs, item, self._check)

    def _check(self, given: Any) -> Citation:
        anyio.from_thread.check_cancelled()
        return check(self._desk.toolkit.workspace, self._desk.repository, given)

    def _end(self, reason: str) -> None:
        left = self.left()
        self._desk.book.close(self._plan.slugs, reason)
        tail = f"; not reached: {', '.join(left)} ({reason})" if left else ""
        progress.say(f"[{self._plan.name}] session ended: {self._log.ended}{tail}")


def _reply(number: int, verdict: Verdict) -> str:
    if verdict.refusal is not None:
        return f"Item {number} ({verdict.practice or 'no practice of this session'}): refused: {verdict.refusal}"
    return f"Item {number} ({verdict.practice}): recorded."
