"""The directories that are written, and the room in them. Nothing is written to find out."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from driver.check.finding import Finding, failure, warning
from driver.check.reading import Reading
from driver.exits import CheckExit
from driver.values import MIB

_INODES: Final = 100_000


def look(reading: Reading, environ: Mapping[str, str]) -> Iterator[Finding]:
    """The workspace, which the driver cannot do without, then the directories of whatever asks for them."""
    workspace = reading.settings.workspace
    if reason := _unwritable(_nearest(workspace)):
        advice = "mount a volume there that this user, or group 0, may write to"
        found = f"{workspace}: {reason}"
        yield failure("places", "workspace", found, advice, CheckExit.MACHINE)
    else:
        yield _room("workspace", workspace, reading.settings.program.disk)
    for name, place in (("HOME", environ.get("HOME", "")), ("TMPDIR", environ.get("TMPDIR") or _temporary())):
        if not place:
            yield Finding("places", name, "is not set; programs get one of their own")
        elif reason := _unwritable(Path(place)):
            advice = "name a writable directory, or mount one there: tools that are no programs of a run may need it"
            yield warning("places", name, f"{place}: {reason}", advice)
        else:
            yield Finding("places", name, f"{place} can be written")


def _temporary() -> str:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return "/tmp"


def _nearest(place: Path) -> Path:
    """The place, or what it would be made in."""
    return next((path for path in (place, *place.parents) if path.exists()), place)


def _unwritable(place: Path) -> str | None:
    if not place.is_dir():
        return "is no directory"
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return "is on a read-only file system"
    if not os.access(place, os.W_OK | os.X_OK):
        return f"may not be written by user {os.getuid()}, group {os.getgid()}"
    return None


def _room(name: str, place: Path, wanted: int) -> Finding:
    room = os.statvfs(_nearest(place))
    free = room.f_bavail * room.f_frsize
    found = f"{place} can be written; {free // MIB:,} MiB free"
    if free < wanted:
        advice = "give it a larger volume, or lower DRIVER_PROGRAM_DISK: a full disk ends a run with the reason `disk`"
        return warning("places", name, f"{found}, programs may use {wanted // MIB:,} MiB", advice)
    if room.f_files and room.f_favail < _INODES:
        advice = "give it a volume with more inodes: each file of a repository takes one"
        return warning("places", name, f"{found}, but {room.f_favail:,} inodes only", advice)
    return Finding("places", name, found)
