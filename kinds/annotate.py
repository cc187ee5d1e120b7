"""Puts a citable line number in front of each line of a patch.

    [L12]  context line          line 12 of the new file
    [L13] +added line            line 13 of the new file
    [L-] -removed line           not in the new file: there is nothing to cite

Everything is bytes and is passed on as it is; a line ends at a line feed and nowhere else. Hunk bodies are
counted by their headers, so no content can look like a header, and no header begins with `[`. The lines
of a submodule are not lines of a file, so they are `[L-]` too.

The patch is read in pieces of 64 KiB: memory does not grow with the length of a patch or of a line.
"""

import re
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

_PIECE_BYTES: Final = 64 * 1024
_LINES_BETWEEN_CHECKS: Final = 1024
_HUNK: Final = re.compile(rb"@@ -(\d{1,10})(?:,(\d{1,10}))? \+(\d{1,10})(?:,(\d{1,10}))? @@")
_SUBMODULE: Final = re.compile(rb"(index [0-9a-f]+\.\.[0-9a-f]+|new file mode|deleted file mode) 160000\n")

Range = tuple[int, int]
"""First and last line of a hunk in the new file, both counted from 1."""


class PatchError(Exception):
    """The patch is not one that git writes, or does not fit to git's list of files."""


def no_check() -> None:
    """The check of a caller that nobody cancels."""


class Patch:
    """A patch that is copied section by section, one section for each `diff --git` line.

    `check` is called now and then, and may raise to end the work.
    """

    def __init__(self, source: BinaryIO, target: BinaryIO, check: Callable[[], None] = no_check) -> None:
        self._source = source
        self._target = target
        self._check = check
        self._lines = 0
        self._next = self._piece()

    @property
    def at_end(self) -> bool:
        """Whether all of the patch was copied."""
        return not self._next

    def section(self) -> Iterator[Range]:
        """Copy one section, and give the range of each hunk that has lines in the new file.

        Raises PatchError where no section begins.
        """
        if not self._next.startswith(b"diff --git "):
            raise PatchError("the patch has no section for a changed file")
        submodule = False
        self._copy_line()
        while self._next and not self._next.startswith(b"diff --git "):
            submodule = submodule or bool(_SUBMODULE.fullmatch(self._next))
            if self._next.startswith(b"@@ "):
                yield from self._hunk(citable=not submodule)
            else:
                self._copy_line()

    def _hunk(self, *, citable: bool) -> Iterator[Range]:
        match = _HUNK.match(self._next)
        if match is None:
            raise PatchError("a hunk of the patch has no line numbers")
        self._copy_line()
        _, old, first, new = (1 if number is None else int(number) for number in match.groups())
        self._body(old, first, new, citable=citable)
        if citable and new:
            yield first, first + new - 1

    def _body(self, old: int, line: int, new: int, *, citable: bool) -> None:
        """Copy the lines of a hunk. Nearly all the work is done here, so it is one plain loop."""
        read, write = self._source.readline, self._target.write
        piece = self._next
        while old > 0 or new > 0:
            kind = piece[:1]
            mark = b"[L-] "
            if kind == b"-":
                old -= 1
            elif kind == b"+" or kind == b" ":
                new -= 1
                old -= kind == b" "
                if citable:
                    mark = b"[L%d] " % line
                line += 1
            elif kind == b"\\":
                mark = b""
            else:
                break
            # Two at most are left less with each line, so that one of two neighbours is always met.
            if (old + new) % _LINES_BETWEEN_CHECKS < 2:
                self._check()
            write(mark + piece)
            if piece[-1:] != b"\n":
                self._copy_rest()
            piece = read(_PIECE_BYTES)
        self._next = piece
        if old or new:
            raise PatchError("a hunk of the patch is not as long as its header says")

    def _copy_line(self) -> None:
        self._target.write(self._next)
        if self._next[-1:] != b"\n":
            self._copy_rest()
        self._next = self._piece()

    def _copy_rest(self) -> None:
        """Copy what is left of a line that is longer than a piece."""
        piece = self._piece()
        while piece[-1:] != b"\n":
            if not piece:
                raise PatchError("the patch ends within a line")
            self._target.write(piece)
            piece = self._piece()
        self._target.write(piece)

    def _piece(self) -> bytes:
        self._lines += 1
        if self._lines % _LINES_BETWEEN_CHECKS == 0:
            self._check()
        return self._source.readline(_PIECE_BYTES)
