"""A whole composition: the request, the conversation, the feedback, and the files in `out/`.

`out/feedback.json` is written at the start, after each turn that changed it and at the end, so that whatever ends the
program, what was taken until then is there.
"""

from pathlib import Path
from typing import Any, Final

import anyio.to_thread

from driver.exits import ProgramExit
from kinds.programs import change_lines, compose_brief, progress, request
from kinds.programs.composing import FEEDBACK, SUMMARIZE, Composing
from kinds.programs.confine import Confined
from kinds.programs.dialogue import Dialogue
from kinds.programs.envelope import TaskEnvelope
from kinds.programs.feedback import Sheet
from kinds.programs.model import ModelClient, Waits
from kinds.programs.one_session import OneSession
from kinds.programs.results import replace_file
from kinds.programs.stoppable import stoppable
from kinds.programs.surroundings import Surroundings
from kinds.programs.tools import TOOLS, Toolkit
from kinds.programs.wires import Features, wire_named

SCHEMA_VERSION: Final = 1

_NAME: Final = "composition"


class Composition:
    """One composition. `run` gives the program's exit; the files are written whatever it is."""

    def __init__(self, around: Surroundings, envelope: TaskEnvelope, waits: Waits) -> None:
        self._around = around
        self._envelope = envelope
        self._waits = waits
        self._workspace = Confined(around.workspace)
        self._sheet: Sheet | None = None
        self._session = OneSession(_NAME, "the feedback is not complete", around)

    async def run(self) -> int:
        """Compose until done, the work deadline, or SIGTERM. Writes the files, and returns the exit."""
        return await stoppable(lambda: self._session.guarded(self._compose), self.write)

    def write(self, exit: int | None = None) -> None:
        """Write all files. `exit` is the program's exit, or None while it still works.

        One that cannot be written does not keep the others from it; the first such OSError is raised then.
        """
        out = self._around.workspace / "out"
        out.mkdir(exist_ok=True)
        files = {"usage.json": self._session.usage.as_json(), "runner-debug.json": self._session.debug(exit)}
        if self._sheet is not None:
            files["feedback.json"] = self._sheet.as_json(SCHEMA_VERSION)
        faults = [fault for name, value in files.items() if (fault := _fault_of(out / name, value))]
        if faults:
            raise faults[0]

    async def _compose(self) -> int:
        around, envelope = self._around, self._envelope
        asked = await anyio.to_thread.run_sync(request.load, around.workspace, envelope.composition_request)
        lines = await anyio.to_thread.run_sync(change_lines.load, self._workspace, envelope.repository_root)
        sheet = self._sheet = Sheet(asked, lines)
        self._save()
        if not asked.observations:
            progress.say("nothing was admitted, so there is nothing to say")
            self._session.log.ended = "done"
            return ProgramExit.COMPLETE
        progress.say(f"composing the feedback on {len(asked.observations)} observations with {around.model}")
        first = await anyio.to_thread.run_sync(compose_brief.compose, self._workspace, envelope, asked, lines)
        exit = await self._session.talk(self._dialogue(sheet), first, is_done=self._is_done)
        missing = ", ".join(one.id for one in sheet.uncovered(needed=True)) or "none"
        progress.say(f"{len(sheet.units)} units, {sheet.refusals} refused; observations without one: {missing}")
        return exit

    def _dialogue(self, sheet: Sheet) -> Dialogue:
        client = ModelClient(
            self._around.door,
            wire_named(self._around.wire),
            self._around.model,
            system=compose_brief.system_prompt(),
            tools=(*TOOLS, FEEDBACK, SUMMARIZE),
            waits=self._waits,
            usage=self._session.usage,
            # A composition's call gives the gateway no sample of a first token, and nobody reads along.
            features=Features(stream=False),
        )
        part = Composing(_NAME, sheet, self._session.log, self._save)
        return Dialogue(
            _NAME,
            part,
            model=client,
            toolkit=Toolkit.over(self._workspace),
            room=None,
            log=self._session.log,
            context_tokens=self._around.context_tokens,
            so_far=part.so_far,
        )

    def _is_done(self) -> bool:
        """A model that stopped by itself, again after a reminder, has said all that it has to say."""
        has_summary = self._sheet is not None and self._sheet.summary is not None
        return has_summary and self._session.log.ended in ("done", "stopped")

    def _save(self) -> None:
        """Write what was taken so far. What cannot be written now may be written at the end."""
        try:
            self.write()
        except OSError as error:
            progress.say(f"the feedback cannot be written yet: {error}")


def _fault_of(path: Path, value: dict[str, Any]) -> OSError | None:
    try:
        replace_file(path, value)
    except OSError as error:
        return error
    return None
