"""Structured logs: one JSON object a line, or a line for people.

A line has `time`, `level`, `event`, what was bound (`run.id`, `run.epoch`, `run.kind`, `subject.key`) and
the event's own fields, without those that are None. docs/operations.md lists the events. No body, token or key is
ever a field; what programs print is masked all the same.
"""

import json
import os
import queue
import threading
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


# What a person at a terminal knows already: there is one run, and they started it.
_NOT_FOR_PEOPLE: Final = frozenset({"time", "level", "event", "run.id", "run.epoch", "run.kind", "subject.key"})


def render_console(record: Record) -> str:
    """The record as one line for a person."""
    time, level, event = record["time"][11:19], record["level"], record["event"]
    if event == "program.output":
        return f"{time}   | {record['text']}"
    fields = "  ".join(f"{k}={_plain(v)}" for k, v in record.items() if k not in _NOT_FOR_PEOPLE)
    mark = {"warning": "! ", "error": "!!"}.get(level, "  ")
    return f"{time} {mark}{event:<22} {fields}".rstrip()


RENDERERS: Final[dict[str, Renderer]] = {"json": render_json, "console": render_console}


class QueuedSink:
    """Writes lines to a file descriptor from a thread of its own.

    Whoever reads our output may stall; a renewal may not wait for that. At most 4 MiB wait; what comes
    on top is dropped and counted.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
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

    def close(self) -> None:
        """Write what waits, for at most two seconds."""
        self._lines.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while (data := self._lines.get()) is not None:
            self._write_all(data)
            with self._lock:
                self._waiting_bytes -= len(data)
                dropped, self._dropped = self._dropped, 0
            if dropped:
                self._write_all(f'{{"level":"warning","event":"log.dropped","lines":{dropped}}}\n'.encode())

    def _write_all(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except OSError:
                # A closed or full output must not end the run whose output it is.
                with self._lock:
                    self._dropped += 1
                return


def _rfc3339(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if value < 10 else f"{value:.0f}"
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if " " in text or not text else text
