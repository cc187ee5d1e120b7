"""One session: brief, model call, tools, results, next call; until each of its practices has a result."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import anyio.to_thread

from kinds.programs import brief, observations, progress
from kinds.programs.citations import check
from kinds.programs.errors import CallFault, CallRefused, CallUnanswered, ContextFull, DoorClosed, ToolRefused
from kinds.programs.heap import Room
from kinds.programs.model import ModelClient
from kinds.programs.observations import Book, ObservationRefused, Verdict
from kinds.programs.practices import Plan
from kinds.programs.repair import NotUnderstood, loads
from kinds.programs.text import one_line
from kinds.programs.tools import Toolkit
from kinds.programs.transcript import Transcript
from kinds.programs.wires import ToolCall, ToolResult, Turn

CALLS: Final = 40

_NOTED_CHARACTERS: Final = 300
_NOTED_REFUSALS: Final = 100
# A shortened transcript must leave room for some turns, or each of them would be shortened again.
_SHORTEN_TO: Final = 0.6


@dataclass
class SessionLog:
    """What happened in a session (`out/runner-debug.json`)."""

    name: str
    practices: tuple[str, ...]
    ended: str = "running"
    turns: list[dict[str, Any]] = field(default_factory=list)
    retries: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    tool_calls: int = 0
    shortened: int = 0
    peak_bytes: int = 0

    def retrying(self, error: CallFault, seconds: float) -> None:
        """A try failed (model.Watcher)."""
        self.retries.append({"reason": one_line(str(error), _NOTED_CHARACTERS), "waitSeconds": round(seconds, 3)})
        progress.say(f"[{self.name}] call failed, next try in {seconds:.1f} s: {error}")

    def answered(self, turn: Turn, seconds: float) -> None:
        """A call was answered."""
        self.turns.append(
            {
                "seconds": round(seconds, 3),
                "inputTokens": turn.usage.input,
                "outputTokens": turn.usage.output,
                "calls": [one_line(call.name, 60) for call in turn.calls],
            }
        )

    def refused(self, reason: str) -> None:
        """Note why an observation or a tool call was refused."""
        if len(self.refusals) < _NOTED_REFUSALS:
            self.refusals.append(one_line(reason, _NOTED_CHARACTERS))

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "practices": list(self.practices),
            "ended": self.ended,
            "turns": list(self.turns),
            "toolCalls": self.tool_calls,
            "refusals": list(self.refusals),
            "retries": list(self.retries),
            "waitedSeconds": round(sum(retry["waitSeconds"] for retry in self.retries), 3),
            "shortenedResults": self.shortened,
            "peakTranscriptBytes": self.peak_bytes,
        }


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
            self._end("context_full", f"the brief alone is more than the model takes: {error}")
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
                results = [await self._answer(call) for call in turn.calls]
                self._transcript.add(self._desk.model.wire.results(results))
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
        verdicts = [await anyio.to_thread.run_sync(self._record, item) for item in items]
        self._desk.recorded()
        for verdict in verdicts:
            self._tell(verdict)
        left = ", ".join(self._left()) or "none"
        return "\n".join([*(_reply(n, verdict) for n, verdict in enumerate(verdicts, 1)), f"Still open: {left}."])

    def _record(self, item: Any) -> Verdict:
        workspace, repository = self._desk.toolkit.workspace, self._desk.repository
        return self._desk.book.report(self._plan.slugs, item, lambda given: check(workspace, repository, given))

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
