"""One session: brief, model call, tools, results, next call; until each of its practices has a result."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import anyio
import anyio.from_thread
import anyio.to_thread

from kinds.programs import brief, observations, progress
from kinds.programs.citations import Citation, check
from kinds.programs.errors import CallRefused, CallUnanswered, ContextFull, DoorClosed, ToolRefused
from kinds.programs.heap import Room
from kinds.programs.model import ModelClient
from kinds.programs.observations import Book, ObservationRefused, Verdict
from kinds.programs.practices import Plan
from kinds.programs.repair import NotUnderstood, loads
from kinds.programs.session_log import SessionLog
from kinds.programs.tools import Toolkit
from kinds.programs.transcript import Transcript
from kinds.programs.wires import ToolCall, ToolResult, Turn

CALLS: Final = 40

_CALLS_A_TURN: Final = 64
# A shortened transcript must leave room for some turns, or each of them would be shortened again.
_SHORTEN_TO: Final = 0.6


@dataclass(frozen=True)
class Desk:
    """What all sessions work with. `recorded` is called after each batch that changed the book."""

    model: ModelClient
    toolkit: Toolkit
    book: Book
    repository: str
    recorded: Callable[[], None]


class Session:
    """One session over one plan. `run` ends by itself; whatever ends it, the book holds what was recorded."""

    def __init__(self, plan: Plan, desk: Desk, room: Room, log: SessionLog) -> None:
        self._plan = plan
        self._desk = desk
        self._room = room
        self._log = log
        self._transcript = Transcript()

    async def run(self, first_message: str) -> None:
        """Measure. Raises DoorClosed when no call of the run will work any more."""
        self._transcript.add(self._desk.model.wire.user(first_message, lasting=True))
        self._charge()
        try:
            reason = await self._turns()
        except CallUnanswered as error:
            self._end("unanswered", f"the model did not answer: {error}")
        except ContextFull as error:
            self._end(
                "context_full",
                f"the model takes no transcript of this length: {error}",
            )
        except DoorClosed as error:
            self._end("door_closed", f"the door takes no more calls: {error}")
            raise
        except CallRefused as error:
            self._end("refused", f"the model call was refused: {error}")
        else:
            self._end(*reason)

    async def _turns(self) -> tuple[str, str]:
        """How the session ended, and the reason for each practice that is still open then."""
        reminded = False
        for number in range(1, CALLS + 1):
            turn = await self._ask(number)
            self._transcript.add(turn.entry)
            if turn.calls:
                self._transcript.add(self._desk.model.wire.results(await self._results(turn.calls)))
            left = self._left()
            if not left:
                return "done", ""
            if not turn.calls:
                if reminded:
                    return "stopped", "the model stopped, and again after a reminder"
                reminded = True
                progress.say(f"[{self._plan.name}] model stopped; reminded of {', '.join(left)}")
                self._transcript.add(self._desk.model.wire.user(brief.reminder(left)))
            self._charge()
        return "calls_used", f"the session used its {CALLS} model calls"

    async def _ask(self, number: int) -> Turn:
        started = anyio.current_time()
        turn = await self._turn()
        seconds = anyio.current_time() - started
        self._log.answered(turn, seconds)
        tokens = f"{turn.usage.input} tokens in, {turn.usage.output} out"
        progress.say(f"[{self._plan.name}] call {number}: {seconds:.1f} s, {tokens}, tools: {len(turn.calls)}")
        return turn

    async def _turn(self) -> Turn:
        while True:
            try:
                return await self._desk.model.ask(self._transcript, self._log)
            except ContextFull as error:
                if not self._shorten():
                    raise
                progress.say(f"[{self._plan.name}] transcript too long ({error}); older tool results left out")

    async def _results(self, calls: tuple[ToolCall, ...]) -> list[ToolResult]:
        """A result for each call: most wires refuse a turn in which one is missing."""
        results = [await self._answer(call) for call in calls[:_CALLS_A_TURN]]
        if left := calls[_CALLS_A_TURN:]:
            reason = f"refused: at most {_CALLS_A_TURN} tools are called in one turn; call it again"
            self._log.refused(f"{len(left)} more tool calls in one turn")
            progress.say(f"[{self._plan.name}] {len(left)} tool calls past {_CALLS_A_TURN} in one turn refused")
            results += [ToolResult(call, reason) for call in left]
        return results

    async def _answer(self, call: ToolCall) -> ToolResult:
        self._log.tool_calls += 1
        if call.name == observations.TOOL.name:
            return ToolResult(call, await self._report(call))
        try:
            arguments = loads(call.arguments or "{}", lambda value: isinstance(value, dict))
            line = progress.tool_line(call.name, arguments)
            progress.say(f"[{self._plan.name}] {line}")
            text = await self._desk.toolkit.call(call.name, arguments)
        except (ToolRefused, NotUnderstood) as error:
            self._log.refused(f"{call.name}: {error}")
            progress.say(f"[{self._plan.name}] {call.name} refused: {error}")
            return ToolResult(call, f"refused: {error}")
        return ToolResult(call, text, f"(the output of `{line}` was left out to make room; call it again if needed)")

    async def _report(self, call: ToolCall) -> str:
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
            self._tell(verdict)
        left = ", ".join(self._left()) or "none"
        return "\n".join([*(_reply(n, verdict) for n, verdict in enumerate(verdicts, 1)), f"Still open: {left}."])

    def _record(self, item: Any) -> Verdict:
        return self._desk.book.report(self._plan.slugs, item, self._check)

    def _check(self, given: Any) -> Citation:
        anyio.from_thread.check_cancelled()
        return check(self._desk.toolkit.workspace, self._desk.repository, given)

    def _tell(self, verdict: Verdict) -> None:
        if verdict.observation is not None:
            progress.say(f"[{self._plan.name}] recorded {progress.observation_line(verdict.observation)}")
        else:
            self._log.refused(f"{verdict.practice or 'an observation'}: {verdict.refusal}")
            progress.say(f"[{self._plan.name}] refused {verdict.practice or 'an observation'}: {verdict.refusal}")

    def _left(self) -> list[str]:
        return self._desk.book.open(self._plan.slugs)

    def _charge(self) -> None:
        """Charge what the transcript holds; when the heap is overdrawn, give back what can be."""
        held = self._transcript.held_bytes
        self._log.peak_bytes = max(self._log.peak_bytes, held)
        if not self._room.charge(held):
            self._shorten()

    def _shorten(self) -> bool:
        shortened = self._transcript.shorten(int(self._transcript.held_bytes * _SHORTEN_TO))
        self._log.shortened += shortened
        self._room.charge(self._transcript.held_bytes)
        return shortened > 0

    def _end(self, ended: str, reason: str) -> None:
        self._log.ended = ended
        left = self._left()
        self._desk.book.close(self._plan.slugs, reason)
        tail = f"; not reached: {', '.join(left)} ({reason})" if left else ""
        progress.say(f"[{self._plan.name}] session ended: {ended}{tail}")


def _reply(number: int, verdict: Verdict) -> str:
    if verdict.refusal is not None:
        return f"Item {number} ({verdict.practice or 'no practice of this session'}): refused: {verdict.refusal}"
    return f"Item {number} ({verdict.practice}): recorded."
