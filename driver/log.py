"""Structured logs: one JSON object a line, or a line for people.

A line has `time`, `level`, `event`, what was bound (`run.id`, `run.epoch`, `run.kind`, `subject.key`) and
the event's own fields, without those that are None. docs/operations.md lists the events. No body, token or key is
ever a field; what programs print is masked all the same.
"""

import json
import os
import queue
import select
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from driver.secrets import Secrets

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_KIB = 1024
_QUEUED_LINES_BYTES: Final = 4 * 1024 * _KIB
_CLOSE_SECONDS: Final = 2.0

Record = dict[str, Any]
Renderer = Callable[[Record], str]
Sink = Callable[[str], None]


class Log:
    """A logger with bound fields. `bind` gives a new one; nothing is global."""

    def __init__(
        self,
        sink: Sink,
        *,
        render: Renderer,
        level: str = "info",
        secrets: Secrets | None = None,
        wall: Callable[[], float],
        bound: Mapping[str, Any] | None = None,
    ) -> None:
        self._sink = sink
        self._render = render
        self._level = level
        self._secrets = secrets or Secrets()
        self._wall = wall
        self._bound = dict(bound or {})

    @property
    def secrets(self) -> Secrets:
        """What this log masks; a secret that comes into being is added here before it is used."""
        return self._secrets

    def bind(self, fields: Mapping[str, Any]) -> "Log":
        """This log with `fields` on each line."""
        return Log(
            self._sink,
            render=self._render,
            level=self._level,
            secrets=self._secrets,
            wall=self._wall,
            bound={**self._bound, **fields},
        )

    def debug(self, event: str, **fields: Any) -> None:
        self._write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: Mapping[str, Any]) -> None:
        if LEVELS[level] < LEVELS[self._level]:
            return
        told = {name: value for name, value in fields.items() if value is not None}
        record = {"time": _rfc3339(self._wall()), "level": level, "event": event, **self._bound, **told}
        self._sink(self._secrets.mask(self._render(record)) + "\n")


def render_json(record: Record) -> str:
    """The record as one line of JSON."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"), default=str)


_MIB: Final = 1 << 20

# What a person at a terminal knows already: there is one run, and they started it.
_NOT_FOR_PEOPLE: Final = frozenset({"time", "level", "event", "run.id", "run.epoch", "run.kind", "subject.key"})


def render_console(record: Record) -> str:
    """The record as one line for a person."""
    time, level, event = record["time"][11:19], record["level"], record["event"]
    if event == "program.output":
        return f"{time}   | {record['text']}"
    fields = "  ".join(f"{k}={_plain(k, v)}" for k, v in record.items() if k not in _NOT_FOR_PEOPLE)
    mark = {"warning": "! ", "error": "!!"}.get(level, "  ")
    return f"{time} {mark}{event:<22} {fields}".rstrip()


RENDERERS: Final[dict[str, Renderer]] = {"json": render_json, "console": render_console}


class QueuedSink:
    """Writes lines to a file descriptor from a thread of its own.

    Whoever reads our output may stall; a renewal may not wait for that. At most 4 MiB wait; what comes
    on top, or cannot be written, is lost and counted: `log.dropped` tells how many lines that were.
    """

    def __init__(self, fd: int, *, render: Renderer = render_json) -> None:
        self._writer = LineWriter(fd)
        self._render = render
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting_bytes = 0
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def __call__(self, line: str) -> None:
        data = line.encode("utf-8", "backslashreplace")
        with self._lock:
            if self._waiting_bytes + len(data) > _QUEUED_LINES_BYTES:
                self._dropped += 1
                return
            self._waiting_bytes += len(data)
        self._lines.put(data)

    @property
    def lost(self) -> int:
        """How many lines were lost and not told of yet."""
        with self._lock:
            return self._dropped

    def close(self) -> None:
        """Write what waits, for at most two seconds."""
        self._lines.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while (data := self._lines.get()) is not None:
            written = self._writer.write(data)
            with self._lock:
                self._waiting_bytes -= len(data)
                dropped, self._dropped = self._dropped + (not written), 0
            if dropped and not (written and self._writer.write(self._loss_of(dropped))):
                with self._lock:
                    self._dropped += dropped

    def _loss_of(self, lines: int) -> bytes:
        record = {"time": _rfc3339(time.time()), "level": "warning", "event": "log.dropped", "lines": lines}
        return (self._render(record) + "\n").encode()


class LineWriter:
    """Writes whole lines to a file descriptor, also after one that was torn by a full disk."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._torn = False

    def write(self, line: bytes) -> bool:
        """Whether all of it could be written: a closed or full output must not end the run whose output it is."""
        left = memoryview(b"\n" + line if self._torn else line)
        size = len(left)
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:
                # Somebody who shares our output has made it non-blocking.
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()
            except OSError:
                self._torn = self._torn or len(left) < size
                return False
        self._torn = False
        return True


def _rfc3339(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(name: str, value: Any) -> str:
    if isinstance(value, int) and value >= _MIB and (name in ("bytes", "total") or name.endswith("_bytes")):
        return f"{value / _MIB:.1f}MiB"
    if isinstance(value, float):
        return f"{value:.3g}" if value < 10 else f"{value:.0f}"
    text = str(value)
    # What a terminal would act on is escaped.
    return json.dumps(text, ensure_ascii=not text.isprintable()) if _needs_quotes(text) else text


def _needs_quotes(text: str) -> bool:
    return not text or " " in text or not text.isprintable()
