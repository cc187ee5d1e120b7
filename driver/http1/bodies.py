"""Cuts the body of a message out of what a connection brings: no I/O, no state of HTTP beyond the body's end.

The three ways to tell where it ends: RFC 9112, section 6.3. h11 knows them too; it makes an event of each chunk, and
a model's answer is thousands of chunks of a few bytes.
"""

import re
from typing import Final, Protocol

from driver.errors import DriverError

_LINE_BYTES: Final = 16 * 1024
_TRAILER_BYTES: Final = 64 * 1024

_SIZE_LINE: Final = re.compile(rb"\r\n([0-9A-Fa-f]{1,15})[ \t]*+(?:;[^\r\n]*+)?\r\n")


class BodyBroke(DriverError):
    """The body broke off, or breaks the rules of HTTP."""


class Body(Protocol):
    """A body that arrives. `ended` tells whether it is whole; `rest` is what came behind its end."""

    ended: bool
    rest: bytes

    def feed(self, data: bytes) -> bytes:
        """What `data` holds of the body. Raises BodyBroke where the body is broken and nothing of it is left."""
        ...

    def end(self) -> None:
        """The connection ended. Raises BodyBroke where the body is not whole."""
        ...


class SizedBody:
    """A body of known length."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.ended = not size
        self.rest = b""

    def take(self, size: int) -> None:
        """So many bytes of the body came another way; `left` says how many there are."""
        self.left -= size
        self.ended = not self.left

    def feed(self, data: bytes) -> bytes:
        piece = data[: self.left]
        self.take(len(piece))
        self.rest += data[len(piece) :]
        return piece

    def end(self) -> None:
        if self.left:
            raise BodyBroke(f"{self.left:,} bytes of the body are missing")


class BodyUntilClose:
    """A body that ends with the connection."""

    def __init__(self) -> None:
        self.ended = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        return data

    def end(self) -> None:
        self.ended = True


class ChunkedBody:
    """A body in chunks (RFC 9112, section 7.1). Extensions and trailers are passed over."""

    def __init__(self) -> None:
        # A size line is read together with the line end before it, so the first one gets one too.
        self._line = b"\r\n"
        self._left = 0
        self._last = False
        self._fault = ""
        self.ended = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        text = self._line + data if self._line else data
        parts: list[bytes] = []
        at = 0
        while not self._last:
            if self._left:
                piece = text[at : at + self._left]
                parts.append(piece)
                at += len(piece)
                self._left -= len(piece)
            size = None if self._left else _SIZE_LINE.match(text, at)
            if size is None:
                break
            at = size.end()
            self._left = int(size[1], 16)
            self._last = not self._left
        self._line = text[at:]
        self._fault = self._fault or self._trailer() if self._last else self._wrong_line()
        if self._fault and not parts:
            raise BodyBroke(self._fault)
        return b"".join(parts)

    def _wrong_line(self) -> str:
        """What is wrong with the beginning of a size line."""
        line = self._line
        is_line = b"\r\n".startswith(line[:2]) and b"\n" not in line[2:] and len(line) <= _LINE_BYTES
        return "" if is_line else "a chunk of the body is malformed"

    def _trailer(self) -> str:
        """Look for the empty line that ends the body; what is wrong with the lines before it."""
        end = 0 if self._line.startswith(b"\r\n") else self._line.find(b"\r\n\r\n") + 2
        if end == 1:
            return "the trailer of the body is too long" if len(self._line) > _TRAILER_BYTES else ""
        self.ended = True
        self.rest = self._line[end + 2 :]
        return ""

    def end(self) -> None:
        if not self.ended:
            raise BodyBroke("the body ended within its chunks")
