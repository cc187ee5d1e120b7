"""The task envelope: what a review is about, and where its inputs lie (docs/kinds.md, "The workspace").

Read by the runner beside the token and by the program without it, so both see the same faults. Only the
standard library is imported: this is on the path of a program's start.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

T = TypeVar("T")

SCHEMA_VERSION: Final = 3

_KIB = 1024
_MIB = 1024 * _KIB
# Its parsing holds the interpreter's lock: a few milliseconds at this size.
_ENVELOPE_BYTES: Final = _MIB
_LOCATION_BYTES: Final = 4096
_PART_BYTES: Final = 255
_IDENTITY_CHARACTERS: Final = 200
_LARGEST_NUMBER: Final = 2**63 - 1
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_REPOSITORY: Final = re.compile(r"[^/\s]+(/[^/\s]+)+")


class EnvelopeError(Exception):
    """The task envelope is not valid; the message names the field. Both sides turn it into exit 42."""


@dataclass(frozen=True)
class TaskEnvelope:
    """A checked envelope. The seven locations are relative to the workspace and use `/`."""

    schema_version: int
    job_id: str
    workspace_id: str
    prompt: str
    pull_request_number: int
    repository_full_name: str
    context_root: str
    repository_root: str
    manifest: str
    practice_index: str
    composition_request: str
    prepared_feedback: str
    precompute_scripts: str


def load(workspace: Path, name: str) -> TaskEnvelope:
    """The envelope at `name` below `workspace`. Raises EnvelopeError.

    No link is followed below the workspace, and at most 1 MiB is read. Blocks for as long as that takes.
    """
    return parse(_read(workspace, _location(name, "task")))


def parse(data: bytes) -> TaskEnvelope:
    """The envelope in `data`. Unknown fields are ignored. Raises EnvelopeError."""
    fields = _decode(data)
    version = _take(fields, "schemaVersion", _number)
    # Checked first: the fields of another version mean nothing here.
    if version != SCHEMA_VERSION:
        raise EnvelopeError(f"schemaVersion: {version} is not {SCHEMA_VERSION}")
    return TaskEnvelope(
        schema_version=version,
        job_id=_take(fields, "jobId", _identity),
        workspace_id=_take(fields, "workspaceId", _identity),
        prompt=_take(fields, "prompt", _text),
        pull_request_number=_take(fields, "pullRequestNumber", _number),
        repository_full_name=_take(fields, "repositoryFullName", _repository),
        context_root=_take(fields, "contextRoot", _location),
        repository_root=_take(fields, "repositoryRoot", _location),
        manifest=_take(fields, "manifest", _location),
        practice_index=_take(fields, "practiceIndex", _location),
        composition_request=_take(fields, "compositionRequest", _location),
        prepared_feedback=_take(fields, "preparedFeedback", _location),
        precompute_scripts=_take(fields, "precomputeScripts", _location),
    )


def _read(workspace: Path, name: str) -> bytes:
    try:
        data = read_below(workspace, name, _ENVELOPE_BYTES + 1)
    except OSError as error:
        raise EnvelopeError(f"task: {name} cannot be read ({error.strerror})") from error
    if len(data) > _ENVELOPE_BYTES:
        raise EnvelopeError(f"task: {name} is larger than {_ENVELOPE_BYTES:,} bytes")
    return data


def read_below(root: Path, location: str, most: int) -> bytes:
    """At most `most` bytes of a file at a checked location. Follows no link below `root`. Raises OSError."""
    fd = _open_below(root, location.split("/"))
    try:
        data = bytearray()
        while len(data) < most and (more := os.read(fd, min(most - len(data), _MIB))):
            data += more
        return bytes(data)
    finally:
        os.close(fd)


def _open_below(workspace: Path, parts: list[str]) -> int:
    """Open a file part by part, so that a link anywhere on the way is an error (openat(2), O_NOFOLLOW)."""
    fd = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for place, part in enumerate(parts, 1):
        # O_NONBLOCK: opening a fifo must fail in the read and not wait for a writer.
        kind = os.O_NONBLOCK if place == len(parts) else os.O_DIRECTORY
        try:
            below = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _decode(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except UnicodeDecodeError as error:
        raise EnvelopeError("task: is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise EnvelopeError(f"task: is not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise EnvelopeError("task: is not a JSON object")
    return fields


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise EnvelopeError(f"{name[:_IDENTITY_CHARACTERS]!a}: is given twice")
        fields[name] = value
    return fields


def _take(fields: dict[str, Any], name: str, check: Callable[[Any, str], T]) -> T:
    if name not in fields:
        raise EnvelopeError(f"{name}: is missing")
    return check(fields[name], name)


def _number(value: Any, name: str) -> int:
    # bool is an int to isinstance, and `true` is no number here.
    if type(value) is not int or not 1 <= value <= _LARGEST_NUMBER:
        raise EnvelopeError(f"{name}: must be a whole number from 1")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise EnvelopeError(f"{name}: must be a text that is not empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise EnvelopeError(f"{name}: holds half of a surrogate pair") from error
    return value


def _identity(value: Any, name: str) -> str:
    """An id is a text, or a whole number that is kept as text."""
    if type(value) is int:
        return str(_number(value, name))
    text = _text(value, name)
    if len(text) > _IDENTITY_CHARACTERS or _CONTROL.search(text):
        raise EnvelopeError(f"{name}: must be at most {_IDENTITY_CHARACTERS} characters without control characters")
    return text


def _repository(value: Any, name: str) -> str:
    text = _identity(_text(value, name), name)
    if not _REPOSITORY.fullmatch(text):
        raise EnvelopeError(f"{name}: must be as in owner/name")
    return text


def _location(value: Any, name: str) -> str:
    """A place below the workspace, judged by its text alone: it need not be there yet."""
    text = _text(value, name)
    if text.startswith("/"):
        raise EnvelopeError(f"{name}: must be relative to the workspace")
    if "\\" in text or ":" in text or _CONTROL.search(text):
        raise EnvelopeError(f"{name}: must hold no backslash, colon or control character")
    parts = text.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise EnvelopeError(f"{name}: must hold no `.`, `..` or empty part")
    if len(text.encode()) > _LOCATION_BYTES or any(len(part.encode()) > _PART_BYTES for part in parts):
        raise EnvelopeError(f"{name}: must be at most {_PART_BYTES} bytes a part and {_LOCATION_BYTES:,} in all")
    return text
