"""A session's transcript, held as the encoded bytes that go to the model.

Strings and dictionaries of the same text take two to six times the memory, and a body that is encoded
anew for each call is a second copy. So each part is encoded once, when it is added, and a request's body is
a walk over the parts. What the bytes mean is the wire's business (`wires`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_KIB = 1024
CHUNK_BYTES: Final = 64 * _KIB
# What CPython spends on one part beside its bytes: the object, its fields, the bytes' own header.
_ITEM_OVERHEAD: Final = 160


@dataclass(slots=True)
class Item:
    """One JSON value. `short` is what may stand in its place when room is needed; None keeps it for good."""

    body: bytes
    short: bytes | None = None


@dataclass(slots=True)
class Entry:
    """Values that stay together, and the bytes around them."""

    items: list[Item]
    opening: bytes = b""
    closing: bytes = b""


@dataclass
class Transcript:
    """The entries of one session, oldest first."""

    _entries: list[Entry] = field(default_factory=list)
    _bytes: int = 0
    _items: int = 0

    def add(self, entry: Entry) -> None:
        """Add an entry; one without values adds nothing."""
        if not entry.items:
            return
        # The comma before the entry counts from the second one on.
        self._bytes += _encoded_size(entry) + (1 if self._entries else 0)
        self._items += len(entry.items)
        self._entries.append(entry)

    def extend(self, items: list[Item]) -> None:
        """Add values to the newest entry."""
        self._entries[-1].items += items
        self._items += len(items)
        self._bytes += sum(len(item.body) + 1 for item in items)

    def renew(self, item: Item) -> None:
        """Put a value in place of the newest one."""
        items = self._entries[-1].items
        self._bytes += len(item.body) - len(items[-1].body)
        items[-1] = item

    @property
    def encoded_bytes(self) -> int:
        """The exact length of what `chunks` yields."""
        return self._bytes

    @property
    def held_bytes(self) -> int:
        """What the transcript takes of the process's memory."""
        return self._bytes + self._items * _ITEM_OVERHEAD

    def chunks(self) -> Iterator[bytes]:
        """The entries as the inside of a JSON array, in pieces of at most 64 KiB."""
        pending = bytearray()
        for piece in self._pieces():
            for start in range(0, len(piece), CHUNK_BYTES):
                part = piece[start : start + CHUNK_BYTES]
                if len(pending) + len(part) > CHUNK_BYTES:
                    yield bytes(pending)
                    pending.clear()
                pending += part
        if pending:
            yield bytes(pending)

    def shorten(self, target: int, *, unread: bool = False) -> int:
        """Put the short form in place of the oldest values until `held_bytes` is within `target`.

        The newest entry stays as it is: the model has not read it yet. With `unread` only its last value does.
        Returns how many were shortened.
        """
        values = [item for entry in self._entries[:-1] for item in entry.items]
        if unread:
            values += self._entries[-1].items[:-1]
        shortened = 0
        for item in values:
            if self.held_bytes <= target:
                break
            if item.short is not None and len(item.short) < len(item.body):
                self._bytes -= len(item.body) - len(item.short)
                item.body, item.short = item.short, None
                shortened += 1
        return shortened

    def _pieces(self) -> Iterator[bytes]:
        for number, entry in enumerate(self._entries):
            if number:
                yield b","
            yield entry.opening
            for place, item in enumerate(entry.items):
                if place:
                    yield b","
                yield item.body
            yield entry.closing


def _encoded_size(entry: Entry) -> int:
    values = sum(len(item.body) for item in entry.items)
    return len(entry.opening) + values + len(entry.items) - 1 + len(entry.closing)
