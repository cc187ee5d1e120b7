"""What the programs have in common that hold one conversation: its deadline, its exits, and how it is told."""

import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from driver.exits import ProgramExit
from kinds.programs import progress
from kinds.programs.dialogue import Dialogue
from kinds.programs.errors import DoorClosed, InputsUnusable, NotAdmitted
from kinds.programs.session_log import SessionLog
from kinds.programs.surroundings import Surroundings
from kinds.programs.usage import UsageLedger

SCHEMA_VERSION: Final = 1

# What is kept of the work time for the files: at its end the driver stops the program, whose own exit says more.
_RESERVE_SHARE: Final = 0.1
_RESERVE_SECONDS: Final = 5.0


@dataclass
class OneSession:
    """One conversation of a program. `incomplete` is what a person reads when it failed, before the reason."""

    name: str
    incomplete: str
    around: Surroundings
    usage: UsageLedger = field(default_factory=UsageLedger)
    fault: str | None = None

    def __post_init__(self) -> None:
        self.log = SessionLog(self.name, ())

    def debug(self, exit: int | None) -> dict[str, Any]:
        """`out/runner-debug.json`. `exit` is the program's, or None while it still works."""
        sessions = [self.log.as_json()]
        return {"schemaVersion": SCHEMA_VERSION, "exit": exit, "fault": self.fault, "sessions": sessions}

    async def guarded(self, work: Callable[[], Awaitable[int]]) -> int:
        """The exit of `work`, or the one that its failure has."""
        try:
            return await work()
        except InputsUnusable as error:
            return self.failed(ProgramExit.NO_OUTPUT, str(error))
        except NotAdmitted as error:
            return self.failed(ProgramExit.NOT_ADMITTED, f"refused by admission: {error}")
        except DoorClosed as error:
            return self.failed(ProgramExit.NO_OUTPUT, f"the door takes no more calls: {error}")
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            return self.failed(ProgramExit.UNHANDLED, f"{type(error).__name__}: {error}")

    async def talk(
        self,
        dialogue: Dialogue,
        first_message: str,
        *,
        is_done: Callable[[], bool],
        given_up: Callable[[], str] = lambda: "",
    ) -> int:
        """Talk until done or the work deadline: the exit. Raises DoorClosed.

        `is_done` and `given_up` are asked once the conversation is over: the second for why the program ended it.
        """
        around = self.around
        reserve = min(_RESERVE_SECONDS, around.work_seconds * _RESERVE_SHARE)
        reason = ""
        with anyio.CancelScope(deadline=around.started + around.work_seconds - reserve) as work:
            reason = await dialogue.run(first_message)
        if work.cancelled_caught:
            self.log.ended = "interrupted"
            return self.failed(ProgramExit.STOPPED_AT_DEADLINE, "the work deadline came")
        if is_done():
            return ProgramExit.COMPLETE
        if why := given_up():
            self.log.ended, reason = "refused", why
        if self.log.ended == "unanswered" and not self.usage.answered:
            return self.failed(ProgramExit.MODEL_UNANSWERED, reason)
        return self.failed(ProgramExit.NO_OUTPUT, reason)

    def failed(self, exit: ProgramExit, reason: str) -> ProgramExit:
        """Note and tell why the program is not complete."""
        self.fault = reason
        progress.say(f"{self.incomplete}: {reason}")
        return exit
