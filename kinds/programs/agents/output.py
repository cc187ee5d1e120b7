"""The output of a CLI: JSON objects, one a line, of which most say nothing that is needed here."""

import json
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

import anyio
from anyio.abc import ByteReceiveStream

LINE_BYTES: Final = 1024 * 1024
"""A longer line is passed over: what is needed of an output is short."""

_TAIL_LINES: Final = 20
_TAIL_CHARACTERS: Final = 500


class Tail:
    """The last lines of an output, each cut; what a person reads when the CLI has failed."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)

    def add(self, line: bytes) -> None:
        """Keep a line; an empty one says nothing."""
        if text := line[: _TAIL_CHARACTERS * 4].decode("utf-8", "replace").strip()[:_TAIL_CHARACTERS]:
            self._lines.append(text)

    @property
    def last(self) -> str:
        """The last line, or nothing."""
        return self._lines[-1] if self._lines else ""

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)


async def lines(stream: ByteReceiveStream) -> AsyncIterator[bytes]:
    """Each line without its end. One that is over LINE_BYTES is passed over; the stream is read to its end."""
    held = bytearray()
    over = False
    try:
        async for data in stream:
            *ends, rest = data.split(b"\n")
            for end in ends:
                held += end
                if not over and len(held) <= LINE_BYTES:
                    yield bytes(held)
                held.clear()
                over = False
            held += rest
            if len(held) > LINE_BYTES:
                held.clear()
                over = True
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return
    if held and not over:
        yield bytes(held)


def event(line: bytes) -> Mapping[str, Any] | None:
    """The JSON object of a line, or None."""
    if not line.startswith(b"{"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
