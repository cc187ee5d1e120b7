"""One conversation with the model: first message, model call, tools, results, next call; until the work is done.

What is to be done, and what the tools do, is the `Part` that a program plays in it.
"""

from typing import Final, Protocol

import anyio

from kinds.programs import progress
from kinds.programs.errors import CallRefused, CallUnanswered, ContextFull, DoorClosed, ToolRefused
from kinds.programs.heap import Room
from kinds.programs.model import ModelClient
from kinds.programs.repair import NotUnderstood, loads
from kinds.programs.session_log import SessionLog
from kinds.programs.tools import Toolkit
from kinds.programs.transcript import Transcript
from kinds.programs.wires import ToolCall, ToolResult, Turn

CALLS: Final = 40
"""How many model calls one conversation may use."""

_CALLS_A_TURN: Final = 64
# A shortened transcript must leave room for some turns, or each of them would be shortened again.
_SHORTEN_TO: Final = 0.6


class Part(Protocol):
    """What a program does in a conversation."""

    def left(self) -> list[str]:
        """What is still to be done, by name; the conversation is over when nothing is."""
        ...

    def reminder(self, left: list[str]) -> str:
        """What the model is told, once, when it stops before it is done."""
        ...

    async def take(self, call: ToolCall) -> str | None:
        """The answer to a call of one of the program's own tools, or None when it is none of them."""
        ...


class Dialogue:
    """One conversation. `run` ends by itself; its log tells how."""

    def __init__(
        self, name: str, part: Part, *, model: ModelClient, toolkit: Toolkit | None, room: Room | None, log: SessionLog
    ) -> None:
        """`toolkit` are the read-only tools, and `room` is what it has of the session heap; both may be None."""
        self._name = name
        self._part = part
        self._model = model
        self._toolkit = toolkit
        self._room = room
        self._log = log
        self._transcript = Transcript()

    async def run(self, first_message: str) -> str:
        """Talk until done. Returns why something is still to be done, if it is; `log.ended` is how it ended.

        Raises DoorClosed when no call of the run will work any more.
        """
        self._transcript.add(self._model.wire.user(first_message, lasting=True))
        self._charge()
        try:
            self._log.ended, reason = await self._turns()
        except CallUnanswered as error:
            self._log.ended, reason = "unanswered", f"the model did not answer: {error}"
        except ContextFull as error:
            self._log.ended, reason = "context_full", f"the model takes no transcript of this length: {error}"
        except DoorClosed:
            self._log.ended = "door_closed"
            raise
        except CallRefused as error:
            self._log.ended, reason = "refused", f"the model call was refused: {error}"
        return reason

    async def _turns(self) -> tuple[str, str]:
        reminded = False
        for number in range(1, CALLS + 1):
            turn = await self._ask(number)
            self._transcript.add(turn.entry)
            if turn.calls:
                self._transcript.add(self._model.wire.results(await self._results(turn.calls)))
            left = self._part.left()
            if not left:
                return "done", ""
            if not turn.calls:
                if reminded:
                    return "stopped", "the model stopped, and again after a reminder"
                reminded = True
                progress.say(f"[{self._name}] model stopped; reminded of {', '.join(left)}")
                self._transcript.add(self._model.wire.user(self._part.reminder(left)))
            self._charge()
        return "calls_used", f"the session used its {CALLS} model calls"

    async def _ask(self, number: int) -> Turn:
        started = anyio.current_time()
        turn = await self._turn()
        seconds = anyio.current_time() - started
        self._log.answered(turn, seconds)
        tokens = f"{turn.usage.input} tokens in, {turn.usage.output} out"
        progress.say(f"[{self._name}] call {number}: {seconds:.1f} s, {tokens}, tools: {len(turn.calls)}")
        return turn

    async def _turn(self) -> Turn:
        while True:
            try:
                return await self._model.ask(self._transcript, self._log)
            except ContextFull as error:
                if not self._shorten():
                    raise
                progress.say(f"[{self._name}] transcript too long ({error}); older tool results left out")

    async def _results(self, calls: tuple[ToolCall, ...]) -> list[ToolResult]:
        """A result for each call: most wires refuse a turn in which one is missing."""
        results = [await self._answer(call) for call in calls[:_CALLS_A_TURN]]
        if left := calls[_CALLS_A_TURN:]:
            reason = f"refused: at most {_CALLS_A_TURN} tools are called in one turn; call it again"
            self._log.refused(f"{len(left)} more tool calls in one turn")
            progress.say(f"[{self._name}] {len(left)} tool calls past {_CALLS_A_TURN} in one turn refused")
            results += [ToolResult(call, reason) for call in left]
        return results

    async def _answer(self, call: ToolCall) -> ToolResult:
        self._log.tool_calls += 1
        told = await self._part.take(call)
        if told is not None:
            return ToolResult(call, told)
        try:
            if self._toolkit is None:
                raise ToolRefused(f"there is no tool called {call.name}")
            arguments = loads(call.arguments or "{}", lambda value: isinstance(value, dict))
            line = progress.tool_line(call.name, arguments)
            progress.say(f"[{self._name}] {line}")
            text = await self._toolkit.call(call.name, arguments)
        except (ToolRefused, NotUnderstood) as error:
            self._log.refused(f"{call.name}: {error}")
            progress.say(f"[{self._name}] {call.name} refused: {error}")
            return ToolResult(call, f"refused: {error}")
        return ToolResult(call, text, f"(the output of `{line}` was left out to make room; call it again if needed)")

    def _charge(self) -> None:
        """Charge what the transcript holds; when the heap is overdrawn, give back what can be."""
        held = self._transcript.held_bytes
        self._log.peak_bytes = max(self._log.peak_bytes, held)
        if self._room is not None and not self._room.charge(held):
            self._shorten()

    def _shorten(self) -> bool:
        shortened = self._transcript.shorten(int(self._transcript.held_bytes * _SHORTEN_TO))
        self._log.shortened += shortened
        if self._room is not None:
            self._room.charge(self._transcript.held_bytes)
        return shortened > 0
