"""What every test has: one event-loop back end, and disks of their own where they may mount one."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Disk = Callable[[str], Path]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def mounts() -> None:
    """Skips where this machine does not let the test mount anything."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting needs root")
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")


@pytest.fixture
def disk(tmp_path: Path, mounts: None) -> Iterator[Disk]:
    """Mounts a disk in memory, with the options of tmpfs(5), on a directory of its own."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> Path:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], check=True)
        return place

    yield mount
    subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)
