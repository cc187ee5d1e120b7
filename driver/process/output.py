"""What a program prints, made fit for log lines. No I/O here; driver.process.reader reads the pipes."""

import codecs
import re
from collections import deque
from collections.abc import Iterator
from typing import Final

from driver.secrets import Secrets

LINE_BYTES: Final = 8 * 1024
OUTPUT_BYTES: Final = 4 * 1024 * 1024
TAIL_BYTES: Final = 32 * 1024
"""How much of the end of a stream is kept, when not all of it could be."""

_TAILS: Final = 4

_BREAKS: Final = re.compile("[\r\n]+")
_MASK: Final = "***"

# A character that Unicode reserves for a process's own use stands for each masked one.
_REDACTED: Final = "\ufdd0"
_REDACTED_RUN: Final = re.compile(_REDACTED + "+")

# Held back at the end of a line only from this length on, which is that of the shortest secret: else each
# line that happens to end with a secret's first letter would wait for the next one.
_HELD_AT_A_BREAK: Final = 8

_LINE_COST_BYTES: Final = 64
_STEP_BYTES: Final = 16 * 1024
_LONGEST_CHARACTER: Final = 4  # bytes of UTF-8 (RFC 3629)


def _harmless() -> dict[int, str]:
    """What replaces characters that a terminal or a log viewer would act on.

    C0 controls and DEL become their pictures (U+2400 and on), so an escape sequence stays readable and does
    nothing. C1 controls, line separators and changes of writing direction become U+FFFD.
    """
    table = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\r\n"}
    table[0x7F] = "\u2421"
    inert = [*range(0x80, 0xA0), 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), ord(_REDACTED)]
    return table | dict.fromkeys(inert, "\ufffd")


_HARMLESS: Final = _harmless()


class LineSplitter:
    """Turns the bytes of one stream into lines of at most 8 KiB (UTF-8) each.

    Lines end at LF, CR or CR LF; empty ones are left out. Bytes that are not UTF-8 become U+FFFD. A secret is
    masked wherever the stream is split: over writes, over the 8 KiB, and over line ends (base64(1) wraps its
    lines). For that, what may be the beginning of a secret is kept until more is known.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # The text without line ends, its first `_given` characters given out already: as many are kept as
        # a secret could reach back.
        self._text = ""
        self._given = 0
        self._breaks: deque[int] = deque()

    def feed(self, data: bytes) -> list[str]:
        """The lines that are complete and decided with `data`."""
        return self._take(self._decoder.decode(data), final=False)

    def flush(self) -> list[str]:
        """What is left, at the end of the stream."""
        return self._take(self._decoder.decode(b"", True), final=True)

    @property
    def held(self) -> int:
        """How many characters were fed and not given out yet."""
        return len(self._text) - self._given

    def _take(self, new: str, *, final: bool) -> list[str]:
        self._append(new)
        redacted = self._secrets.redact(self._text, _REDACTED)
        clean = _REDACTED not in redacted
        decided = len(redacted) - (0 if final else self._secrets.may_begin(self._text))
        lines: list[str] = []
        while (end := self._next_end(redacted, decided, final=final)) is not None:
            if end > self._given:
                line = redacted[self._given : end]
                lines.append(line if clean else _REDACTED_RUN.sub(_MASK, line))
            self._given = end
        self._forget()
        return lines

    def _append(self, new: str) -> None:
        parts = _BREAKS.split(new.translate(_HARMLESS))
        offset = len(self._text)
        for part in parts[:-1]:
            offset += len(part)
            self._breaks.append(offset)
        self._text += "".join(parts)

    def _next_end(self, redacted: str, decided: int, *, final: bool) -> int | None:
        """Where the next line ends, or None if that is not decided yet."""
        line_end = self._breaks[0] if self._breaks else len(redacted)
        cut = _cut(redacted, self._given, line_end)
        if cut < line_end:
            return cut if cut <= decided else None
        if self._breaks:
            if line_end > decided and len(redacted) - decided >= _HELD_AT_A_BREAK:
                return None
            return self._breaks.popleft()
        return line_end if final and line_end > self._given else None

    def _forget(self) -> None:
        drop = max(self._given - max(self._secrets.longest - 1, 0), 0)
        self._text = self._text[drop:]
        self._given -= drop
        self._breaks = deque(offset - drop for offset in self._breaks)


def _cut(text: str, start: int, line_end: int) -> int:
    """Where a line that begins at `start` has to be cut: at its end, or before it grows over 8 KiB."""
    piece = text[start : min(line_end, start + LINE_BYTES)]
    if len(piece) * _LONGEST_CHARACTER > LINE_BYTES and not piece.isascii():
        piece = piece.encode()[:LINE_BYTES].decode("utf-8", "ignore")
    end = start + len(piece)
    if end < line_end and text[end] == _REDACTED:
        # Not inside a secret: its mask would be written twice.
        end = start + (len(piece.rstrip(_REDACTED)) or len(piece))
    return end


class OutputBudget:
    """How much output of a run's programs is kept: 4 MiB, over all of its programs and streams.

    The most of it is for what comes first, and some is left for the ends of streams. A line counts with its bytes, and
    as 64 bytes at least, since its frame in the log costs about that.
    """

    def __init__(self, limit: int = OUTPUT_BYTES, *, tails: int = _TAILS * TAIL_BYTES) -> None:
        self.limit = limit
        self._left = limit - tails
        self._left_for_tails = tails
        self._spent = False
        self._dropped = 0

    @property
    def spent(self) -> bool:
        """Whether a line was refused: from then on only ends are kept."""
        return self._spent

    @property
    def dropped(self) -> int:
        """Bytes that were read and not kept."""
        return max(0, self._dropped)

    def keep(self, line: str) -> bool:
        """Whether this line may be kept. The first that may not spends what is left."""
        size, cost = _size_and_cost(line)
        if self._spent or cost > self._left:
            self._spent = True
            self.drop(size)
            return False
        self._left -= cost
        return True

    def keep_last(self, lines: list[str]) -> list[str]:
        """Those of the last lines of a stream, which were dropped, that may be kept after all."""
        left = min(TAIL_BYTES, self._left_for_tails)
        first = len(lines)
        while first > 0 and (sizes := _size_and_cost(lines[first - 1]))[1] <= left:
            first -= 1
            left -= sizes[1]
            self._left_for_tails -= sizes[1]
            self._dropped -= sizes[0]
        return lines[first:]

    def drop(self, count: int) -> None:
        """Count bytes that are dropped."""
        self._dropped += count


def _size_and_cost(line: str) -> tuple[int, int]:
    size = len(line) if line.isascii() else len(line.encode())
    return size, max(size, _LINE_COST_BYTES)


class Tail:
    """The end of a stream of which not everything is kept; memory for it does not grow."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._data = bytearray()
        self._cut = False

    def add(self, data: bytes) -> None:
        """Take what comes next, and forget what is too long ago."""
        self._data += data
        most = TAIL_BYTES + _LONGEST_CHARACTER * self._secrets.longest
        if len(self._data) > 2 * most:
            del self._data[:-most]
            self._cut = True

    def lines(self) -> Iterator[list[str]]:
        """The lines of the end, step by step, as each takes some milliseconds."""
        splitter = LineSplitter(self._secrets)
        # Where the beginning was forgotten, so may have been that of a secret: what may be the rest of it is left out.
        hidden = self._secrets.longest if self._cut else 0
        for start in range(0, len(self._data) + 1, _STEP_BYTES):
            lines = splitter.feed(bytes(self._data[start : start + _STEP_BYTES]))
            if start + _STEP_BYTES > len(self._data):
                lines += splitter.flush()
            while lines and hidden > 0:
                hidden -= len(lines.pop(0))
            yield lines
