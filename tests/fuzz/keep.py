"""`python -m tests.fuzz.keep FOUND CORPUS`: what is worth keeping of the archives that were found.

Smallest first, an archive is kept when it goes from one line to another, in the driver or in the rules, as none before
it went. CORPUS then holds these and no others.
"""

import shutil
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any

import driver.workspace
from tests.driver.workspace import rules
from tests.driver.workspace.archives import FAST
from tests.fuzz.target import Place

WATCHED = (*driver.workspace.__path__, rules.__file__)

Steps = set[tuple[str, int, int]]
"""Source, line, and the line after it."""


def steps(place: Place, archive: bytes) -> Steps:
    """Where an archive leads."""
    found: Steps = set()
    lines: dict[FrameType, int] = {}

    def line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            found.add((frame.f_code.co_filename, lines.get(frame, 0), frame.f_lineno))
            lines[frame] = frame.f_lineno
        return line

    def call(frame: FrameType, _: str, __: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(WATCHED) else None

    sys.settrace(call)
    try:
        place.try_archive(archive)
    finally:
        sys.settrace(None)
    return found


def worth_keeping(place: Place, archives: set[bytes]) -> list[bytes]:
    kept: list[bytes] = []
    seen: Steps = set()
    for archive in sorted(archives, key=lambda archive: (len(archive), archive)):
        if new := steps(place, archive) - seen:
            seen |= new
            kept.append(archive)
    return kept


def main(found: Path, corpus: Path) -> None:
    with tempfile.TemporaryDirectory(dir=FAST, prefix="fuzz-") as parent:
        archives = {path.read_bytes() for place in (found, corpus) for path in place.iterdir()}
        kept = worth_keeping(Place(Path(parent)), archives)
    shutil.rmtree(corpus)
    corpus.mkdir()
    for archive in kept:
        (corpus / f"{sha256(archive).hexdigest()[:16]}.tar").write_bytes(archive)
    sys.stdout.write(f"{len(kept)} of {len(archives)} archives kept, {sum(map(len, kept)):,} bytes\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
