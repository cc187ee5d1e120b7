"""What uploaded results say, for a person at a terminal; and the directory that they find them in.

Whoever uploads is not trusted: the archive is read by the rules for incoming ones, and every line is made fit
for a terminal.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from driver.errors import ArchiveRefused
from driver.stub.errors import StubError
from driver.workspace.names import Parts
from driver.workspace.tar_reader import Directory, File, TarLimits, TarReader

REVIEW: Final = "out"
FEEDBACK: Final = "feedback"
"""Where the results of a review and of a composition go in that directory; both hold the files of an `out/`."""

_PACKED: Final = "out"
_MARK: Final = ".demo-result"
_MARK_TEXT: Final = f"`make demo` and `make review` made this directory; they replace `{REVIEW}/` and `{FEEDBACK}/`.\n"
_MARKS: Final = {"MET": "ok", "NOT_MET": "!!", "NOT_APPLICABLE": "--", "UNDETERMINED": "??"}
# Citations of the reviewed repository are shown as paths in it.
_REVIEWED: Final = "repos/reviewed/"
_QUOTED_LINES: Final = 3


def require_ours(directory: Path) -> None:
    """Raises StubError unless a result may be put into `directory`: it is new, empty, or holds an earlier one."""
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise StubError(f"{directory}: cannot hold the result ({there} is no directory that can be written)")
    taken = there == directory and bool(os.listdir(directory))
    if taken and not (directory / _MARK).is_file():
        raise StubError(f"{directory}: holds other things; name a new or empty directory for the result")


def replace_result(archive: bytes, directory: Path, name: str = REVIEW) -> list[Path]:
    """Put the `out/` of an uploaded archive at `name` in `directory`, in place of an earlier one; its files, sorted.

    Nothing else in the directory is touched. Raises StubError.
    """
    require_ours(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / _MARK).write_text(_MARK_TEXT, "ascii")
        remove_result(directory, name)
        return sorted(_unpack(archive, directory / name))
    except ArchiveRefused as error:
        raise StubError(f"the uploaded result: {error}") from None
    except OSError as error:
        raise StubError(f"{directory}: cannot hold the result ({error.strerror or error})") from None


def remove_result(directory: Path, name: str) -> None:
    """Remove what an earlier result left at `name`, in a directory that holds one."""
    if (directory / _MARK).is_file() and (directory / name).exists():
        shutil.rmtree(directory / name)


def _unpack(archive: bytes, target: Path) -> list[Path]:
    reader = TarReader(TarLimits(bytes=len(archive)))
    files: list[Path] = []
    for event in reader.feed(archive):
        # A file that is not whole in all of the bytes makes `close` raise.
        if isinstance(event, Directory):
            _place(target, event.parts).mkdir()
        elif isinstance(event, File):
            files.append(_place(target, event.parts))
            files[-1].write_bytes(event.data)
    reader.close()
    return files


def _place(target: Path, parts: Parts) -> Path:
    if parts[0] != _PACKED.encode():
        raise StubError(f"the uploaded result holds more than {_PACKED}/")
    return target.joinpath(*map(os.fsdecode, parts[1:]))


def read_review(directory: Path) -> list[str]:
    """What `result.json` of an unpacked result says, as lines; none where the run left no such file."""
    return _read(directory / REVIEW / "result.json", review_lines)


def read_feedback(directory: Path) -> list[str]:
    """What `feedback.json` of an unpacked result says, as lines; none where the run left no such file."""
    return _read(directory / FEEDBACK / "feedback.json", feedback_lines)


def _read(file: Path, lines: Callable[[Mapping[str, Any]], Iterator[str]]) -> list[str]:
    try:
        return [plain(line) for line in lines(json.loads(file.read_text("utf-8")))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return [f"  {file.name} is not what the bundled program writes"]


def review_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """`out/result.json` as lines: each observation with file and line, then what was not reached."""
    for observation in result["observations"]:
        yield from _observation_lines(observation)
    for practice in result["coverage"]:
        if practice["state"] == "NOT_REACHED":
            yield f"  ..  {practice['practiceSlug']}: not reached: {practice['reason']}"
    admission = result.get("admission")
    if admission:
        yield f"  {len(admission['admitted'])} admitted, {len(admission['refused'])} refused by the gateway"


def feedback_lines(feedback: Mapping[str, Any]) -> Iterator[str]:
    """`out/feedback.json` as an author would read it: each unit at its place, the summary, what is missing."""
    units = sorted(feedback["units"], key=_place_of_unit)
    for unit in units:
        placement = unit["placement"]
        inline = placement["kind"] == "INLINE"
        yield f"  {placement['path']}:{placement['line']}" if inline else "  on the change as a whole"
        yield from _indented(unit["body"])
        yield ""
    if feedback["summary"] is not None:
        yield "  summary"
        yield from _indented(feedback["summary"])
    for observation in feedback["uncovered"]:
        if observation["outcome"] == "NOT_MET":
            yield f"  ..  {observation['practiceSlug']}: no feedback on it"
    for refused in feedback["refused"]:
        yield f"  ..  a unit was refused: {refused['reason']}"


def _place_of_unit(unit: Mapping[str, Any]) -> tuple[bool, str, int]:
    """In the order of the change, and last what is about all of it."""
    placement = unit["placement"]
    return placement["kind"] != "INLINE", placement.get("path", ""), placement.get("line", 0)


def _indented(text: str) -> Iterator[str]:
    return (f"      {line}".rstrip() for line in text.splitlines())


def plain(line: str) -> str:
    """The line without what a terminal would take for a command."""
    return "".join(letter if letter.isprintable() else " " for letter in line)


def _observation_lines(observation: Mapping[str, Any]) -> Iterator[str]:
    severity = f" ({observation['severity']})" if observation.get("severity") else ""
    mark = _MARKS[observation["outcome"]]
    yield f"  {mark}  {observation['practiceSlug']}: {observation['outcome']}{severity}"
    yield from (f"      {line}" for line in observation["summary"].splitlines())
    for citation in observation["citations"]:
        path = citation["path"].removeprefix(_REVIEWED)
        yield f"      {path}:{citation['startLine']}"
        for line in str(citation.get("quote", "")).splitlines()[:_QUOTED_LINES]:
            yield f"        > {line}"
