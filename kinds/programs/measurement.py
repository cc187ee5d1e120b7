"""A whole measurement: practices into sessions, sessions through the heap, observations to admission."""

import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import anyio
import anyio.to_thread

from driver.exits import ProgramExit
from kinds.programs import admission, brief, observations, practices, progress
from kinds.programs.confine import Confined
from kinds.programs.envelope import TaskEnvelope
from kinds.programs.errors import CallRefused, CallUnanswered, ContextFull, DoorClosed, InputsUnusable
from kinds.programs.heap import Room, SessionHeap
from kinds.programs.model import ModelClient, Waits
from kinds.programs.observations import Book
from kinds.programs.practices import Plan
from kinds.programs.results import Report
from kinds.programs.session import Desk, Session
from kinds.programs.session_log import SessionLog
from kinds.programs.stoppable import stoppable
from kinds.programs.surroundings import Surroundings
from kinds.programs.tools import TOOLS, Toolkit
from kinds.programs.wires import wire_named

UNANSWERED_IN_A_ROW: Final = 2

Talk = Callable[[Plan, Room, SessionLog, brief.Shared], Awaitable[None]]
"""One session about one plan. It ends by itself, notes how in the log, and leaves none of its practices open.

Raises DoorClosed when no call of the run will work any more.
"""

# What is kept of the work time for admission and the files, and of that for the files alone: at its end the
# driver stops the program, whose own exit says more.
_RESERVE_SHARE: Final = 0.1
_RESERVE_SECONDS: Final = 30.0
_FILES_SHARE: Final = 0.2


@dataclass(frozen=True)
class Office:
    """What sessions are made from. `save` writes what was measured so far, and is called when the book changed."""

    around: Surroundings
    envelope: TaskEnvelope
    workspace: Confined
    report: Report
    waits: Waits
    save: Callable[[], None]


def talk_with_model(office: Office) -> Talk:
    """Sessions that this program holds itself, through the door."""
    around = office.around
    client = ModelClient(
        around.door,
        wire_named(around.wire),
        around.model,
        system=brief.system_prompt(),
        tools=(*TOOLS, observations.TOOL),
        waits=office.waits,
        usage=office.report.usage,
    )
    toolkit = Toolkit.over(office.workspace)
    root = office.envelope.repository_root
    desk = Desk(client, toolkit, office.report.book, root, office.save, around.context_tokens)

    async def talk(plan: Plan, room: Room, log: SessionLog, shared: brief.Shared) -> None:
        await Session(plan, desk, room, log).run(brief.compose(shared, plan))

    return talk


class Measurement:
    """One measurement. `run` gives the program's exit; the report is written whatever it is.

    `sessions` says how a session is held: by this program, or by another one that it starts.
    """

    def __init__(
        self,
        around: Surroundings,
        envelope: TaskEnvelope,
        heap: SessionHeap,
        waits: Waits,
        sessions: Callable[[Office], Talk] = talk_with_model,
    ) -> None:
        self._around = around
        self._envelope = envelope
        self._heap = heap
        self._waits = waits
        self._make = sessions
        self._workspace = Confined(around.workspace)
        self._unanswered = 0
        self._no_more: str | None = None
        self.report = Report(around.workspace / "out", heap.statistics)

    async def run(self) -> int:
        """Measure until done, the work deadline, or SIGTERM. Writes the report, and returns the exit."""
        return await stoppable(self._guarded, self._write)

    def _write(self, exit: int) -> None:
        reason = "the program was asked to stop" if exit == ProgramExit.TERMINATED else "the program failed"
        self.report.book.close(self.report.book.practices, reason)
        self.report.write(exit)

    def _save(self) -> None:
        """Write what was measured so far. What cannot be written now may be written at the end."""
        try:
            self.report.write()
        except OSError as error:
            progress.say(f"the result cannot be written yet: {error}")

    async def _guarded(self) -> int:
        try:
            return await self._measure()
        except InputsUnusable as error:
            self.report.fault = str(error)
            progress.say(f"cannot measure: {error}")
            return ProgramExit.NO_OUTPUT
        except Exception as error:
            self.report.fault = f"{type(error).__name__}: {error}"
            traceback.print_exc(file=sys.stderr)
            return ProgramExit.UNHANDLED

    async def _measure(self) -> int:
        deadline = self._around.started + self._around.work_seconds
        known = await anyio.to_thread.run_sync(practices.load, self._workspace, self._envelope.practice_index)
        book = self.report.book = Book(tuple(practice.slug for practice in known))
        book.close(tuple(p.slug for p in known if p.criteria is None), "its criteria are not in the workspace")
        self.report.write()
        part = brief.part_for(self._around.context_tokens)
        shared = await anyio.to_thread.run_sync(brief.gather, self._workspace, self._envelope, part)
        plans = practices.plan([practice for practice in known if practice.criteria is not None])
        progress.say(f"measuring {len(known)} practices in {len(plans)} sessions with {self._around.model}")
        reserve = min(_RESERVE_SECONDS, self._around.work_seconds * _RESERVE_SHARE)
        with anyio.CancelScope(deadline=deadline - reserve) as work:
            await self._sessions(plans, shared)
        if work.cancelled_caught:
            progress.say("the work deadline came; open practices are not reached")
            book.close(book.practices, "the work deadline came")
        if plans and not self.report.usage.answered:
            self.report.fault = "no model call was answered"
            progress.say(self.report.fault)
            return ProgramExit.MODEL_UNANSWERED
        return await self._admit(deadline - reserve * _FILES_SHARE)

    async def _sessions(self, plans: list[Plan], shared: brief.Shared) -> None:
        office = Office(self._around, self._envelope, self._workspace, self.report, self._waits, self._save)
        talk = self._make(office)
        async with anyio.create_task_group() as tasks:
            for plan in plans:
                tasks.start_soon(self._session, plan, talk, shared)

    async def _session(self, plan: Plan, talk: Talk, shared: brief.Shared) -> None:
        async with self._heap.session() as room:
            if self._no_more is not None:
                self.report.book.close(plan.slugs, self._no_more)
                return
            await self._run_session(plan, talk, room, shared)

    async def _run_session(self, plan: Plan, talk: Talk, room: Room, shared: brief.Shared) -> None:
        log = SessionLog(plan.name, plan.slugs)
        self.report.sessions.append(log)
        progress.say(f"[{plan.name}] session started: {', '.join(plan.slugs)}")
        try:
            await talk(plan, room, log, shared)
        except DoorClosed as error:
            self._no_more = f"the door takes no more calls: {error}"
        except BaseException:
            log.ended = "interrupted"
            raise
        self._count(log)

    def _count(self, log: SessionLog) -> None:
        """After sessions in a row that ended with their calls unanswered, none is started any more."""
        self._unanswered = self._unanswered + 1 if log.ended == "unanswered" else 0
        if self._unanswered >= UNANSWERED_IN_A_ROW and self._no_more is None:
            self._no_more = f"not started: {self._unanswered} sessions in a row had no answer from the model"
            progress.say(self._no_more)

    async def _admit(self, deadline: float) -> int:
        observed = self.report.observations()
        progress.say(f"posting {len(observed)} observations for admission")
        try:
            with anyio.fail_after(max(deadline - anyio.current_time(), 0)):
                self.report.admission = await admission.admit(self._around.door, observed, self._waits)
        except (CallUnanswered, TimeoutError) as error:
            self.report.fault = f"admission was not reached: {str(error) or 'the work deadline came'}"
            progress.say(self.report.fault)
            return ProgramExit.ADMISSION_UNREACHED
        except (CallRefused, ContextFull) as error:
            self.report.fault = f"admission was refused: {error}"
            progress.say(self.report.fault)
            return ProgramExit.NO_OUTPUT
        admitted, refused = self.report.admission["admitted"], self.report.admission["refused"]
        progress.say(f"admitted {len(admitted)} observations, refused {len(refused)}")
        return ProgramExit.COMPLETE
