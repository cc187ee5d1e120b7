"""The files that a measurement leaves in `out/`, each renamed into place when it is complete.

They are written at the start, after each batch of observations and at the end, so that whatever ends the
program, what was measured until then is there.
"""

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kinds.programs.heap import HeapStatistics
from kinds.programs.observations import Book
from kinds.programs.session_log import SessionLog
from kinds.programs.usage import UsageLedger

SCHEMA_VERSION: Final = 1

# A file of a result may have 10 MiB; without the details it is far below this for any number of sessions.
_DEBUG_BYTES: Final = 8 * 1024 * 1024


@dataclass
class Report:
    """Everything that goes into `out/`, as far as it is known."""

    out: Path
    heap: Callable[[], HeapStatistics]
    book: Book = field(default_factory=lambda: Book(()))
    usage: UsageLedger = field(default_factory=UsageLedger)
    sessions: list[SessionLog] = field(default_factory=list)
    admission: dict[str, Any] | None = None
    fault: str | None = None

    def write(self, exit: int | None = None) -> None:
        """Write all three files. `exit` is the program's exit, or None while it still works.

        One that cannot be written does not keep the others from it; the first such OSError is raised then.
        """
        self.out.mkdir(exist_ok=True)
        debug = _text(self.debug(exit))
        if len(debug) > _DEBUG_BYTES:
            debug = _text(self.debug(exit, details=False))
        files = {
            "result.json": _text(self.result()),
            "usage.json": _text(self.usage.as_json()),
            "runner-debug.json": debug,
        }
        faults = [fault for name, text in files.items() if (fault := _fault_of(self.out / name, text))]
        if faults:
            raise faults[0]

    def result(self) -> dict[str, Any]:
        """`out/result.json`."""
        return {
            "schemaVersion": SCHEMA_VERSION,
            "observations": self.observations(),
            "coverage": self.book.coverage(),
            "admission": self.admission,
        }

    def observations(self) -> list[dict[str, Any]]:
        """What was recorded, in the order of the practice index."""
        return [observation.as_json() for observation in self.book.observations()]

    def debug(self, exit: int | None, *, details: bool = True) -> dict[str, Any]:
        """`out/runner-debug.json`, with or without the details of each session."""
        heap = self.heap()
        return {
            "schemaVersion": SCHEMA_VERSION,
            "exit": exit,
            "fault": self.fault,
            "sessions": [session.as_json(details=details) for session in list(self.sessions)],
            "heap": {
                "totalBytes": heap.total,
                "shareBytes": heap.share,
                "usedBytes": heap.used,
                "sessions": heap.sessions,
                "waiting": heap.waiting,
                "peakUsedBytes": heap.peak_used,
                "peakSessions": heap.peak_sessions,
            },
        }


def replace_file(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON document by renaming a complete file into place. Raises OSError."""
    _replace(path, _text(value))


def _text(value: dict[str, Any]) -> str:
    # Not indented: that is left to Python code, five times slower, and the event loop waits for it after each report.
    return json.dumps(value) + "\n"


def _fault_of(path: Path, text: str) -> OSError | None:
    try:
        _replace(path, text)
    except OSError as error:
        return error
    return None


def _replace(path: Path, text: str) -> None:
    # One name for each thread: the watchdog writes from its own while the program may hang in here.
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}.tmp")
    try:
        temporary.write_text(text, encoding="ascii")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
