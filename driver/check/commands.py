"""The commands that kinds and programs start: whether they are there, and what version they tell."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from driver.check.finding import Finding, failure, warning
from driver.check.reading import Reading
from driver.exits import CheckExit

_VERSION_SECONDS: Final = 5.0
_LONGEST_VERSION: Final = 80


def look(reading: Reading, environ: Mapping[str, str], *, versions: bool) -> Iterator[Finding]:
    """Each command; without `versions` nothing is started."""
    path = environ.get("PATH") or os.defpath
    yield _needed("git", "reviews need it to derive the change", path, versions=versions)
    yield _helpful("rg", "agents search much slower without it", path, versions=versions)
    program = reading.settings.program
    for setting, command in (
        ("DRIVER_PROGRAM_REVIEW", program.review),
        ("DRIVER_PROGRAM_COMPOSE", program.compose),
        ("DRIVER_PROGRAM_DIGEST", program.digest),
    ):
        if command[0] == sys.executable:
            yield Finding("commands", setting, f"the bundled program, by {command[0]}")
        elif found := shutil.which(command[0], path=path):
            yield Finding("commands", setting, _told(found, path, versions=versions))
        else:
            advice = "install it in the image, or name it by its whole path"
            yield failure("commands", setting, f"{command[0]} is not in {path}", advice, CheckExit.SETTINGS)


def _needed(name: str, why: str, path: str, *, versions: bool) -> Finding:
    if found := shutil.which(name, path=path):
        return Finding("commands", name, _told(found, path, versions=versions))
    return failure("commands", name, f"is not in {path}: {why}", "install it in the image", CheckExit.MACHINE)


def _helpful(name: str, why: str, path: str, *, versions: bool) -> Finding:
    if found := shutil.which(name, path=path):
        return Finding("commands", name, _told(found, path, versions=versions))
    return warning("commands", name, f"is not in {path}: {why}", "install it in the image (Debian: ripgrep)")


def _told(command: str, path: str, *, versions: bool) -> str:
    if not versions:
        return command
    try:
        ended = subprocess.run(
            [command, "--version"],
            env={"PATH": path, "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return f"{command}, which does not tell its version"
    line = ended.stdout[:4096].decode("utf-8", "replace").partition("\n")[0].strip()
    if ended.returncode or not line:
        return f"{command}, which does not tell its version"
    return f"{command}: {''.join(c for c in line if c.isprintable())[:_LONGEST_VERSION]}"
