"""What pax headers and GNU long names say about the entry after them."""

from typing import Final

from driver.workspace.tar_fields import BLOCK_BYTES, pax_records, pax_size

EXTENDED_BYTES: Final = 64 * 1024
"""The most that one pax header or GNU long name may hold; extended attributes are the large part of it."""

_PAX: Final = b"x"
_PAX_GLOBAL: Final = b"g"
_GNU_NAME: Final = b"L"
KINDS: Final = (_PAX, _PAX_GLOBAL, _GNU_NAME)

_HARMLESS: Final = frozenset(
    {b"comment", b"mtime", b"atime", b"ctime", b"uid", b"gid", b"uname", b"gname"}
    | {b"LIBARCHIVE.creationtime", b"SCHILY.dev", b"SCHILY.fflags", b"SCHILY.ino", b"SCHILY.nlink"}
)
# Names are bytes here, whatever they are said to encode; writers say BINARY where a name is no UTF-8.
_CHARSETS: Final = frozenset({(b"hdrcharset", b"BINARY"), (b"hdrcharset", b"ISO-IR 10646 2000 UTF-8")})
_HARMLESS_PREFIXES: Final = (b"SCHILY.xattr.", b"SCHILY.acl.", b"LIBARCHIVE.xattr.", b"RHT.security.")


class Extended:
    """Collects one extended header after the other, and holds what they say until their entry comes.

    Every method raises ValueError with the rule that is broken.
    """

    def __init__(self) -> None:
        self._kind = b""
        self._data = bytearray()
        self._left = 0
        self._padding = 0
        self._name: bytes | None = None
        self._size: int | None = None
        self.pending = False

    @property
    def left(self) -> int:
        """Bytes of the extended header that are still to come, padding included."""
        return self._left + self._padding

    def begin(self, kind: bytes, size: int) -> None:
        """Take the block that announces an extended header of that kind, with so many bytes."""
        if self.pending:
            raise ValueError("only one extended header may come before an entry")
        if not 0 < size <= EXTENDED_BYTES:
            raise ValueError(f"an extended header has 1 to {EXTENDED_BYTES:,} bytes, this one has {size:,}")
        self._kind = kind
        self._left = size
        self._padding = -size % BLOCK_BYTES
        self.pending = kind != _PAX_GLOBAL

    def take(self, view: memoryview) -> memoryview:
        """Take some bytes of it and give back the rest."""
        if self._left:
            piece, view = view[: self._left], view[self._left :]
            self._data += piece
            self._left -= len(piece)
            if not self._left:
                self._finish(bytes(self._data))
                self._data.clear()
        skipped = min(self._padding, len(view))
        self._padding -= skipped
        return view[skipped:]

    def apply(self, name: bytes, size: int) -> tuple[bytes, int]:
        """The name and the size of the entry whose header has these; what was held for it is used up."""
        name = name if self._name is None else self._name
        size = size if self._size is None else self._size
        self._name = self._size = None
        self.pending = False
        return name, size

    def _finish(self, data: bytes) -> None:
        if self._kind == _GNU_NAME:
            self._name = data.removesuffix(b"\0")
            return
        seen: set[bytes] = set()
        for keyword, value in pax_records(data):
            if keyword in seen:
                raise ValueError(f"the pax record {_shown(keyword)} comes twice")
            seen.add(keyword)
            self._record(keyword, value)

    def _record(self, keyword: bytes, value: bytes) -> None:
        if keyword in _HARMLESS or keyword.startswith(_HARMLESS_PREFIXES) or (keyword, value) in _CHARSETS:
            return
        if self._kind == _PAX and keyword == b"path":
            self._name = value
        elif self._kind == _PAX and keyword == b"size":
            self._size = pax_size(value)
        else:
            where = "a global pax header" if self._kind == _PAX_GLOBAL else "a pax header"
            raise ValueError(f"the record {_shown(keyword)} is refused in {where}")


def _shown(keyword: bytes) -> str:
    return repr(keyword[:64].decode("utf-8", "backslashreplace"))
