"""The rules for names in archives, and the tree of names that an archive has used so far."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

Parts = tuple[bytes, ...]
"""A path below the workspace as its parts; none of them is empty, `.` or `..`."""

PART_BYTES: Final = 255
NAME_BYTES: Final = 4096

_NO_NAMES: Final = (b"", b".", b"..")
_CONTROL_REFUSED: Final = "NUL and control characters are refused in names"
_SHOWN_BYTES: Final = 200
# The C1 controls U+0080..U+009F are C2 80..C2 9F in UTF-8 (RFC 3629), and C2 is never a continuation byte.
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]")


def printable(name: bytes) -> str:
    """A name for messages and logs: quoted, escaped and bounded."""
    text = repr(name[:_SHOWN_BYTES].decode("utf-8", "backslashreplace"))
    return text if len(name) <= _SHOWN_BYTES else f"{text}... ({len(name)} bytes)"


def split_name(name: bytes) -> Parts:
    """The parts of a name in an archive; `.` and empty parts are dropped. Raises ValueError with the rule."""
    above, slash, last = name.rpartition(b"/")
    if not slash or last in _NO_NAMES or len(name) > PART_BYTES:
        return _split(name)
    # Most entries are in the directory of the one before, which was looked at with that.
    directory = _split_directory(above + slash)
    if _CONTROL.search(last):
        raise ValueError(_CONTROL_REFUSED)
    return (*directory, last)


def _split(name: bytes) -> Parts:
    if not name:
        raise ValueError("an entry must have a name")
    if name.startswith(b"/"):
        raise ValueError("absolute paths are refused")
    if _CONTROL.search(name):
        raise ValueError(_CONTROL_REFUSED)
    parts = tuple([part for part in name.split(b"/") if part and part != b"."])
    if b".." in parts:
        raise ValueError("`..` is refused in names")
    if len(name) > PART_BYTES:
        _check_lengths(parts)
    return parts


_split_directory = lru_cache(maxsize=64)(_split)


def _check_lengths(parts: Parts) -> None:
    length = sum(map(len, parts)) + len(parts) - 1
    if length > NAME_BYTES:
        raise ValueError(f"a name has at most {NAME_BYTES:,} bytes, this one has {length:,}")
    longest = max(map(len, parts), default=0)
    if longest > PART_BYTES:
        raise ValueError(f"a part of a name has at most {PART_BYTES} bytes, this one has {longest:,}")


_Directory = dict[bytes, "_Directory | None"]
# A file is None. A directory that an entry named (and not only an entry below it) holds this key, which
# cannot be the name of anything.
_NAMED: Final = b"/"


class Tree:
    """Every path that an archive has used. It grows with the names, not with their depth.

    `grow` is called with a directory's path, and with how many of its parts there are already, before the others are
    used. It is one call for all of them: two thousand paths of two thousand parts take 17 MB.
    """

    def __init__(self, grow: Callable[[Parts, int], None]) -> None:
        self._root: _Directory = {}
        self._grow = grow
        self._last: tuple[Parts, _Directory] = ((), self._root)

    def add_directory(self, parts: Parts) -> None:
        """Use a path for a directory. Raises ValueError with the rule that it breaks."""
        directory = self._directory(parts)
        if _NAMED in directory:
            raise ValueError("the same path comes twice")
        directory[_NAMED] = None

    def add_file(self, parts: Parts) -> None:
        """Use a path for a file. Raises ValueError with the rule that it breaks."""
        directory = self._directory(parts[:-1])
        if parts[-1] in directory:
            is_file = directory[parts[-1]] is None
            raise ValueError("the same path comes twice" if is_file else "a file cannot take a directory's place")
        directory[parts[-1]] = None

    def _directory(self, parts: Parts) -> _Directory:
        if self._last[0] == parts:
            return self._last[1]
        directory = self._root
        for depth, part in enumerate(parts):
            if part not in directory:
                self._grow(parts, depth)
                for new in parts[depth:]:
                    made: _Directory = {}
                    directory[new] = made
                    directory = made
                break
            below = directory[part]
            if below is None:
                raise ValueError(f"{printable(b'/'.join(parts[: depth + 1]))} is a file already, and no directory")
            directory = below
        self._last = (parts, directory)
        return directory
