"""Server-sent events, parsed as they arrive (HTML Living Standard, 9.2.6), with a bound on each event."""

import re
from dataclasses import dataclass
from typing import Final

from kinds.programs.errors import FrameTooLarge

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Frame:
    """One event: its type (`message` where the stream names none) and its data."""

    event: str
    data: bytes


class FrameParser:
    """Feed it bytes in any split; it gives each complete event once.

    Raises FrameTooLarge once an event holds more than `limit` bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line = bytearray()
        self._data: list[bytes] = []
        self._event = ""
        self._held = 0
        self._after_cr = False
        self._first = True

    def feed(self, chunk: bytes) -> list[Frame]:
        """The events that this chunk completes."""
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if chunk.endswith(b"\r"):
            self._after_cr = True
        *ends, rest = _LINE_END.split(chunk)
        frames = []
        for end in ends:
            self._grow(end)
            if (frame := self._finish_line()) is not None:
                frames.append(frame)
        self._grow(rest)
        return frames

    def _grow(self, part: bytes) -> None:
        self._held += len(part)
        if self._held > self._limit:
            raise FrameTooLarge(f"one event of the stream is over {self._limit} bytes")
        self._line += part

    def _finish_line(self) -> Frame | None:
        line = bytes(self._line)
        self._line.clear()
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        else:
            self._held -= len(line)  # a comment or a field that is not kept
        return None

    def _dispatch(self) -> Frame | None:
        frame = Frame(self._event or "message", b"\n".join(self._data)) if self._data else None
        self._data = []
        self._event = ""
        self._held = 0
        return frame
