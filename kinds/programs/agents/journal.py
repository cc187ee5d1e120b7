"""What a session of a CLI has reported: a file of one JSON document a line, below `.sessions/`.

The command that reports appends to it, several at once; the measuring program reads it. Whoever runs in the session
may write to it too, so a reader takes nothing on trust: whatever a line says is checked again as if it were reported.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from kinds.programs.confine import Confined
from kinds.programs.errors import ToolRefused
from kinds.programs.observations import Book, Check, Verdict

NAME: Final = "reports.jsonl"
MOST_BYTES: Final = 16 * 1024 * 1024
MOST_LINES: Final = 1000
"""More reports than any honest session has: each costs a check in every later one."""

LOCK_SECONDS: Final = 20.0
_RETRY_SECONDS: Final = 0.02


class JournalUnusable(Exception):
    """The journal cannot be written; the message tells why."""


def recorded_line(item: Any) -> bytes:
    """A line for an item that was recorded, as it was given."""
    return _line({"item": item})


def refused_line(practice: str | None, reason: str) -> bytes:
    """A line for a report that was refused; `practice` is None where it names none of the session."""
    return _line({"refused": practice, "reason": reason})


def replay(book: Book, asked: tuple[str, ...], line: bytes, check: Check) -> Verdict:
    """Take one line into the book, whoever wrote it."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, Mapping) or not ("item" in entry or "refused" in entry):
        return Verdict(None, None, "the journal has a line that no report wrote")
    if "item" in entry:
        return book.report(asked, entry["item"], check)
    slug, reason = entry["refused"], entry.get("reason")
    known = slug if isinstance(slug, str) and slug in asked else None
    return Verdict(known, None, book.refuse(known, reason if isinstance(reason, str) else "no reason is noted"))


@contextmanager
def opened(path: Path) -> Iterator[tuple[list[bytes], BinaryIO]]:
    """The complete lines, and the file to append to; locked against every other report of the session.

    Raises JournalUnusable when others hold it for too long or it is full, and OSError.
    """
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(number, "r+b", buffering=0) as file:
        _lock(file)
        data = file.read(MOST_BYTES + 1)
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            # A report that was killed while it wrote.
            file.truncate(whole)
        lines = data[:whole].splitlines()
        if len(lines) >= MOST_LINES:
            raise JournalUnusable(f"this session has reported {MOST_LINES:,} items, which is all it may; stop")
        yield lines, file


def append(file: BinaryIO, lines: list[bytes]) -> None:
    """Append lines. Raises JournalUnusable where they do not fit, and OSError."""
    data = b"".join(lines)
    size = os.fstat(file.fileno()).st_size
    if size + len(data) > MOST_BYTES:
        left = max(MOST_BYTES - size, 0)
        raise JournalUnusable(f"{len(data):,} bytes are too many; this session has room for {left:,}: report less")
    view = memoryview(data)
    while view:
        view = view[os.write(file.fileno(), view) :]


@dataclass
class Reader:
    """Reads the complete lines of a journal as they come, MOST_LINES at most. `path` is relative to the workspace."""

    workspace: Confined
    path: str
    _read: int = 0
    _lines: int = 0

    def new(self) -> list[bytes]:
        """The lines since the last call. Blocks."""
        try:
            with self.workspace.file(self.path) as file:
                file.seek(self._read)
                data = file.read(MOST_BYTES - self._read)
        except ToolRefused:
            return []
        whole = data.rfind(b"\n") + 1
        self._read += whole
        lines = data[:whole].splitlines()[: MOST_LINES - self._lines]
        self._lines += len(lines)
        return lines


def _line(entry: Mapping[str, Any]) -> bytes:
    # ASCII without a line feed, whatever is in it.
    return json.dumps(entry, separators=(",", ":")).encode("ascii") + b"\n"


def _lock(file: BinaryIO) -> None:
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise JournalUnusable(
                    f"other reports have held the journal for {LOCK_SECONDS:g} s; report again"
                ) from None
            time.sleep(_RETRY_SECONDS)
