"""One conversation with the model: first message, model call, tools, results, next call; until the work is done.

What is to be done, and what the tools do, is the `Part` that a program plays in it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

import anyio

from kinds.programs import progress
from kinds.programs.errors import CallRefused, CallUnanswered, ContextFull, DoorClosed, ToolRefused
from kinds.programs.heap import Room
from kinds.programs.model import ModelClient
from kinds.programs.repair import NotUnderstood, loads
from kinds.programs.session_log import SessionLog
from kinds.programs.text import one_line
from kinds.programs.transcript import Item, Transcript
from kinds.programs.window import Window
from kinds.programs.wires import ToolCall, ToolResult, Turn

CALLS: Final = 40
"""How many model calls one conversation may use."""

_CALLS_A_TURN: Final = 64
_CUT: Final = "(Your last answer reached the bound for one answer and was cut there. Do it again in smaller steps.)"
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


class Tools(Protocol):
    """The read-only tools of a conversation, whose output may be left out later and asked for again."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The output of a tool. Raises ToolRefused, whose message is for the model."""
        ...


class Dialogue:
    """One conversation. `run` ends by itself; its log tells how."""

    def __init__(
        self,
        name: str,
        part: Part,
        *,
        model: ModelClient,
        toolkit: Tools | None,
        room: Room | None,
        log: SessionLog,
        context_tokens: int | None = None,
        so_far: Callable[[], str] | None = None,
    ) -> None:
        """`toolkit` are the read-only tools, and `room` is what it has of the session heap; both may be None.

        `context_tokens` is the model's context where it is known. `so_far` tells what was done until now: the model
        reads it again when older results were left out; without it, what is still to be done.
        """
        self._name = name
        self._part = part
        self._model = model
        self._toolkit = toolkit
        self._room = room
        self._log = log
        self._window = Window(context_tokens)
        self._so_far = so_far or self._open
        self._transcript = Transcript()
        # What the model reads last, as long as it may have to be told more with it.
        self._newest: ToolResult | str = ""

    async def run(self, first_message: str) -> str:
        """Talk until done. Returns why something is still to be done, if it is; `log.ended` is how it ended.

        Raises DoorClosed when no call of the run will work any more.
        """
        self._transcript.add(self._model.wire.user(first_message, lasting=True))
        # As text it can take four times what is charged for it, and this frame lives as long as the conversation.
        del first_message
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
            called, cut = await self._step(number)
            left = self._part.left()
            if not left:
                return "done", ""
            if not called:
                if reminded:
                    return "stopped", "the model stopped, and again after a reminder"
                reminded = True
                progress.say(f"[{self._name}] model stopped; reminded of {', '.join(left)}")
                self._newest = self._part.reminder(left) + (f"\n\n{_CUT}" if cut else "")
                self._transcript.add(self._model.wire.user(self._newest))
            self._charge()
            self._fit()
        return "calls_used", f"the session used its {CALLS} model calls"

    async def _step(self, number: int) -> tuple[bool, bool]:
        """One call and the results of its tools: whether there were any, and whether the answer was cut.

        A frame of its own, so that nothing holds an answer beside the transcript while the next one is awaited.
        """
        turn = await self._ask(number)
        self._window.counted(self._transcript.encoded_bytes, turn.usage.input)
        self._transcript.add(turn.entry)
        if turn.calls:
            await self._results(turn.calls)
            if turn.cut:
                self._newest = self._with(_CUT)
                self._transcript.renew(self._encoded(self._newest))
        return bool(turn.calls), turn.cut

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
                if not (self._shorten(_SHORTEN_TO) or self._shorten(_SHORTEN_TO, unread=True)):
                    raise
                progress.say(f"[{self._name}] transcript too long ({error}); older tool results left out")

    async def _results(self, calls: tuple[ToolCall, ...]) -> None:
        """Add a result for each call: most wires refuse a turn in which one is missing."""
        for place, call in enumerate(calls[:_CALLS_A_TURN]):
            self._add(await self._answer(call), first=place == 0)
            self._tell_heap()
        if left := calls[_CALLS_A_TURN:]:
            reason = f"refused: at most {_CALLS_A_TURN} tools are called in one turn; call it again"
            self._log.refused(f"{len(left)} more tool calls in one turn")
            progress.say(f"[{self._name}] {len(left)} tool calls past {_CALLS_A_TURN} in one turn refused")
            for call in left:
                self._add(ToolResult(call, reason), first=False)

    def _add(self, result: ToolResult, *, first: bool) -> None:
        """Encoded at once: the results of a whole turn as text could be many times a session's share of the heap."""
        entry = self._model.wire.results([result])
        if first:
            self._transcript.add(entry)
        else:
            self._transcript.extend(entry.items)
        self._newest = replace(result, call=replace(result.call, arguments=""))

    async def _answer(self, call: ToolCall) -> ToolResult:
        self._log.tool_calls += 1
        told = await self._part.take(call)
        if told is not None:
            return ToolResult(call, told)
        try:
            if self._toolkit is None:
                raise ToolRefused(f"there is no tool called {one_line(call.name, 60)}")
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
        if not self._tell_heap():
            self._shorten(_SHORTEN_TO)

    def _tell_heap(self) -> bool:
        """Charge what the transcript holds. False when the heap is overdrawn."""
        held = self._transcript.held_bytes
        self._log.peak_bytes = max(self._log.peak_bytes, held)
        return self._room is None or self._room.charge(held)

    def _fit(self) -> None:
        """Leave older results out before the model's context is full, those of this turn only where nothing else is."""
        for unread in (False, True):
            share = self._window.share(self._transcript.encoded_bytes)
            if share > 1 and self._shorten(_SHORTEN_TO / share, unread=unread):
                progress.say(f"[{self._name}] transcript near the model's context; older tool results left out")

    def _shorten(self, part: float, *, unread: bool = False) -> bool:
        """Leave older results out until this part of the transcript is left; the model is told. False where none is."""
        shortened = self._transcript.shorten(int(self._transcript.held_bytes * part), unread=unread)
        if not shortened:
            return False
        self._log.shortened += shortened
        note = f"(Older tool results were left out to make room. {self._so_far()})"
        self._transcript.renew(self._encoded(self._with(note)))
        self._tell_heap()
        return True

    def _with(self, note: str) -> ToolResult | str:
        """The newest value with a note. In it, because not every provider takes a message after the results."""
        if isinstance(self._newest, str):
            return f"{self._newest}\n\n{note}"
        return replace(self._newest, text=f"{self._newest.text}\n\n{note}")

    def _encoded(self, value: ToolResult | str) -> Item:
        wire = self._model.wire
        return (wire.user(value) if isinstance(value, str) else wire.results([value])).items[-1]

    def _open(self) -> str:
        return f"Still open: {', '.join(self._part.left()) or 'nothing'}."
