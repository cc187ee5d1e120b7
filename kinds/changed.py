"""The files of a change: reads git's lists and writes files.json beside the annotated patch.

Git prints the same files in the same order in its raw list, its list of counts and its patch. The three are
read side by side, and what does not fit together is an error. Nothing is found by its name, because a name
may hold anything; and nothing is kept, so memory does not grow with the change.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from kinds.annotate import Patch, PatchError, Range, no_check

_CHUNK_BYTES: Final = 64 * 1024
_STATUS: Final = {
    b"A": "added",
    b"C": "copied",
    b"D": "deleted",
    b"M": "modified",
    b"R": "renamed",
    b"T": "type_changed",
}


@dataclass(frozen=True)
class Totals:
    """How large a change is. Binary files add no lines."""

    files: int
    added: int
    deleted: int


@dataclass(frozen=True)
class ChangedFile:
    """One record of `git diff-tree --raw -z`."""

    path: bytes
    old_path: bytes | None
    status: str


@dataclass(frozen=True)
class Counts:
    """One record of `git diff-tree --numstat -z`."""

    path: bytes
    added: int
    deleted: int
    binary: bool


def derive(lists: Path, target: Path, check: Callable[[], None] = no_check) -> Totals:
    """Write diff.patch and files.json below `target` from `raw`, `numstat` and `patch` below `lists`.

    Raises PatchError when the three do not fit together. Blocks, and calls `check` now and then.
    """
    files = added = deleted = 0
    with (
        open(lists / "raw", "rb") as raw,
        open(lists / "numstat", "rb") as numstat,
        open(lists / "patch", "rb") as source,
        open(target / "diff.patch", "xb") as patch_file,
        open(target / "files.json", "x", encoding="ascii") as json_file,
    ):
        patch = Patch(source, patch_file, check)
        counts = read_numstat(numstat)
        json_file.write("[")
        for file in read_raw(raw):
            count = next(counts, None)
            if count is None or count.path != file.path:
                raise PatchError("git's list of counts has other files than its list of changes")
            json_file.write((",\n" if files else "\n") + _head(file, count))
            _write_ranges(json_file.write, _ranges(patch, file))
            files, added, deleted = files + 1, added + count.added, deleted + count.deleted
        json_file.write("\n]\n")
        if next(counts, None) is not None or not patch.at_end:
            raise PatchError("git's list of changes ends before its counts and its patch")
    return Totals(files, added, deleted)


def read_raw(source: BinaryIO) -> Iterator[ChangedFile]:
    """The records of `--raw -z` (git-diff-tree(1), "Raw output format"). Raises PatchError."""
    tokens = _tokens(source)
    for token in tokens:
        fields = token.split(b" ")
        status = _STATUS.get(fields[-1][:1])
        if not token.startswith(b":") or len(fields) != 5 or status is None:
            raise PatchError("git's list of changes cannot be understood")
        old_path = _path(tokens) if status in ("renamed", "copied") else None
        yield ChangedFile(_path(tokens), old_path, status)


def read_numstat(source: BinaryIO) -> Iterator[Counts]:
    """The records of `--numstat -z` (git-diff(1), "Other diff formats"). Raises PatchError."""
    tokens = _tokens(source)
    for token in tokens:
        added, _, rest = token.partition(b"\t")
        deleted, _, path = rest.partition(b"\t")
        binary = added == deleted == b"-"
        if not binary and not (added.isdigit() and deleted.isdigit()):
            raise PatchError("git's list of counts cannot be understood")
        if not path:
            # A rename: the old name and the new one follow as tokens of their own.
            _path(tokens)
            path = _path(tokens)
        yield Counts(path, 0 if binary else int(added), 0 if binary else int(deleted), binary)


def _path(tokens: Iterator[bytes]) -> bytes:
    path = next(tokens, b"")
    if not path:
        raise PatchError("git's list ends before a file's name")
    return path


def _tokens(source: BinaryIO) -> Iterator[bytes]:
    rest = b""
    while chunk := source.read(_CHUNK_BYTES):
        *whole, rest = (rest + chunk).split(b"\0")
        yield from whole
    if rest:
        raise PatchError("git's list ends within a record")


def _ranges(patch: Patch, file: ChangedFile) -> Iterator[Range]:
    # A file that became something else (a link, a submodule) is printed as a deletion and an addition.
    for _ in range(2 if file.status == "type_changed" else 1):
        yield from patch.section()


def _head(file: ChangedFile, count: Counts) -> str:
    record: dict[str, object] = {"path": printable(file.path)}
    if file.old_path is not None:
        record["oldPath"] = printable(file.old_path)
    record |= {"status": file.status, "added": count.added, "deleted": count.deleted, "binary": count.binary}
    return json.dumps(record)[:-1]


def _write_ranges(write: Callable[[str], object], ranges: Iterator[Range]) -> None:
    separator = ""
    write(', "hunks": [')
    for first, last in ranges:
        write(f"{separator}[{first}, {last}]")
        separator = ", "
    write("]}")


def printable(path: bytes) -> str:
    r"""A name as text. What is not UTF-8 is shown as `\xNN`, which is for reading and opens no file."""
    return path.decode("utf-8", "backslashreplace")
