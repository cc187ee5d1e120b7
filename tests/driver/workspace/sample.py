"""The tree that every writer of archives has to pack; `python -m tests.driver.workspace.sample DIRECTORY` lays it."""

import sys
from pathlib import Path

RUN = "run"
"""The one executable file."""

SAMPLE: dict[str, bytes | None] = {
    "plain.txt": b"x" * 512,
    "nothing": b"",
    "empty": None,
    "a": None,
    "a/with space": b"a\n",
    "-dash": b"-",
    RUN: b"#!/bin/sh\n",
    "d" * 90: None,
    "d" * 90 + "/" + "e" * 60: b"too long for one field",
    "Grüße — 你好": b"text",
    "d" * 120: None,
    "d" * 120 + "/" + "e" * 120: None,
    "d" * 120 + "/" + "e" * 120 + "/" + "f" * 200: b"long" * 1000,
}
"""Content of files, None for directories, by path."""

FITS_USTAR = {name: content for name, content in SAMPLE.items() if not name.startswith("d" * 120)}
PLAIN_USTAR = {name: content for name, content in FITS_USTAR.items() if name.isascii()}


def lay(root: Path, sample: dict[str, bytes | None]) -> None:
    """Make these directories and files below a directory."""
    for name, content in sample.items():
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)
            (root / name).chmod(0o755 if name == RUN else 0o640)


if __name__ == "__main__":
    lay(Path(sys.argv[1]), SAMPLE)
