"""A whole conversation of `DIGEST` or `TURN`: the brief, the dialogue, the answer, the files in `out/`.

`answer.json` is written last, and only on exit 0: whatever else ends the program, there is no answer.
"""

from typing import Final

from driver.exits import ProgramExit
from kinds.programs import asked, progress
from kinds.programs.answering import FACT, TRIES, Answering, Shelf, answer_tool
from kinds.programs.captured import Captured
from kinds.programs.dialogue import Dialogue
from kinds.programs.model import ModelClient, Waits
from kinds.programs.one_session import OneSession
from kinds.programs.results import replace_file
from kinds.programs.stoppable import stoppable
from kinds.programs.surroundings import Surroundings
from kinds.programs.wires import wire_named

_NAME: Final = "conversation"


class Conversing:
    """One conversation. `run` gives the program's exit; the files are written whatever it is."""

    def __init__(self, around: Surroundings, captured: Captured, waits: Waits) -> None:
        self._around = around
        self._captured = captured
        self._waits = waits
        self._out = around.workspace / "out"
        self._session = OneSession(_NAME, "there is no answer", around)
        self._part = Answering(captured, self._session.log)

    async def run(self) -> int:
        """Talk until there is an answer, the work deadline, or SIGTERM. Writes the files, and returns the exit."""
        return await stoppable(lambda: self._session.guarded(self._converse), self.write)

    def write(self, exit: int) -> None:
        """Write the files of a program that ends so. Raises OSError; then there is no answer."""
        answer = self._out / "answer.json"
        self._out.mkdir(exist_ok=True)
        answer.unlink(missing_ok=True)
        replace_file(self._out / "usage.json", self._session.usage.as_json())
        replace_file(self._out / "runner-debug.json", self._session.debug(exit))
        if exit == ProgramExit.COMPLETE and self._part.answer is not None:
            replace_file(answer, self._part.answer.as_json())

    async def _converse(self) -> int:
        around, captured = self._session.around, self._captured
        progress.say(f"{len(captured.facts)} captured facts; answering with {around.model}")
        return await self._session.talk(
            self._dialogue(),
            asked.compose(captured),
            is_done=lambda: self._part.answer is not None,
            given_up=lambda: f"{TRIES} answers were refused" if self._part.given_up else "",
        )

    def _dialogue(self) -> Dialogue:
        client = ModelClient(
            self._around.door,
            wire_named(self._around.wire),
            self._around.model,
            system=asked.system_prompt(),
            tools=(FACT, answer_tool(self._captured.answer_characters)),
            waits=self._waits,
            usage=self._session.usage,
        )
        return Dialogue(
            _NAME,
            self._part,
            model=client,
            toolkit=Shelf(self._captured),
            room=None,
            log=self._session.log,
            context_tokens=self._around.context_tokens,
        )
