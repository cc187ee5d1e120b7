"""Server-sent events as bytes: bounded framing, no I/O.

A frame is everything up to and including its blank line, unchanged. Lines end in \\n, \\r\\n or \\r (WHATWG HTML,
section 9.2.5, "Parsing an event stream").
"""

import re
from collections.abc import Iterator
from typing import Final

from driver.errors import DoorRefusal

_MIB: Final = 1024 * 1024

FRAME_BYTES: Final = 4 * _MIB
"""The longest frame, blank line included."""

ANSWER_BYTES: Final = 64 * _MIB
"""The longest answer of one model call."""

# Two line ends in a row. In `\r\n` the \n belongs to the \r before it, so a single one is no match.
_ANY_BLANK_LINE: Final = re.compile(rb"\n(?:\n|\r\n?)|\r\r\n?")

_EVENT_LINE: Final = re.compile(rb"event:([^\r\n]*+)")


class FrameReader:
    """Cuts an event stream into frames."""

    def __init__(self, frame_limit: int = FRAME_BYTES, answer_limit: int = ANSWER_BYTES) -> None:
        self._frame_limit = frame_limit
        self._answer_limit = answer_limit
        self._partial = bytearray()
        self._total = 0

    @property
    def held(self) -> int:
        """Bytes of the frame that is not complete yet."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes, oldest first; joined they are the stream so far.

        A frame whose blank line may still get the \\n of its last \\r is given at once; that \\n then begins the
        next frame, where it is an empty line. Raises DoorRefusal `frame_too_large` or `answer_too_large`.
        """
        self._total += len(data)
        check_answer(self._total, self._answer_limit)
        # A blank line may begin with the last byte that was held, not before: it would have been found.
        searched = max(0, len(self._partial) - 1)
        if self._partial:
            self._partial += data
        stream = self._partial or data
        frames = []
        start = 0
        with memoryview(stream) as view:
            for end in _frame_ends(stream, searched):
                self._check_frame(end - start)
                frames.append(bytes(view[start:end]))
                start = end
            if start or stream is data:
                self._partial = bytearray(view[start:])
        self._check_frame(len(self._partial))
        return frames

    def _check_frame(self, size: int) -> None:
        if size > self._frame_limit:
            raise DoorRefusal(
                502, "frame_too_large", f"an event of the answer is longer than {self._frame_limit:,} bytes"
            )

    def rest(self) -> list[bytes]:
        """What came after the last blank line, if anything; to be asked for when the stream has ended."""
        rest = [bytes(self._partial)] if self._partial else []
        self._partial.clear()
        return rest


def _frame_ends(data: bytes | bytearray, searched: int) -> Iterator[int]:
    if data.find(b"\r", searched) >= 0:
        yield from (match.end() for match in _ANY_BLANK_LINE.finditer(data, searched))
        return
    # The usual stream has no \r and few lines, and a single byte is found many times as fast as two in a row.
    end = data.find(b"\n", searched) + 1
    while end:
        if data[end : end + 1] == b"\n":
            end += 1
            yield end
        end = data.find(b"\n", end) + 1


def check_answer(size: int, limit: int = ANSWER_BYTES) -> None:
    """Raise DoorRefusal `answer_too_large` for an answer of more than `limit` bytes."""
    if size > limit:
        raise DoorRefusal(502, "answer_too_large", f"the answer is longer than {limit:,} bytes")


def event_name(frame: bytes) -> bytes:
    """The event's name where the frame begins with one, as providers send it, else `b""`."""
    match = _EVENT_LINE.match(frame)
    return match[1].strip() if match else b""


def event_data(frame: bytes) -> bytes:
    """The data of a frame: its `data` lines, joined."""
    lines = [line[5:].removeprefix(b" ") for line in frame.splitlines() if line.startswith(b"data:")]
    return lines[0] if len(lines) == 1 else b"\n".join(lines)
