"""Files that no directory shows are found at the processes that hold them open, each once."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver.process.children import Children
from driver.process.limits import ProgramLimits, tree_excess
from driver.process.unlinked import mapped, unlinked
from tests.driver.process.conftest import PYTHON

MIB = 1024 * 1024
SOON = 60.0

# 16 MiB on disk and 64 MiB in memory, of which a fork holds the same; half of the latter is mapped.
HOLDS = """
import mmap, os, sys, time
disk = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(disk, b"x" * (16 << 20))
os.unlink(sys.argv[1])
named = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(named, b"x" * (4 << 20))
memory = os.memfd_create("held")
for _ in range(64):
    os.write(memory, b"x" * (1 << 20))
seen = mmap.mmap(memory, 32 << 20)
for at in range(0, len(seen), mmap.PAGESIZE):
    seen[at]
os.fork()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def pids(children: Children, tmp_path: Path) -> Iterator[list[int]]:
    """Two processes that hold the same files."""
    command = [*PYTHON, HOLDS, str(tmp_path / "file")]
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing, process_group=0)
    assert process.stdout is not None
    for _ in range(2):
        process.stdout.readline()
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    yield [process.pid, int(child)]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    os.waitpid(int(child), 0)
    process.stdout.close()


def test_unlinked(pids: list[int]) -> None:
    """A file counts once, as memory or as disk, and one that has a name does not."""
    found = unlinked(pids, until=time.monotonic() + SOON)
    assert sorted((one.in_memory, one.bytes // MIB) for one in found) == [(False, 16), (True, 64)]
    assert unlinked(pids, until=0.0) == []


def test_mapped(children: Children, pids: list[int]) -> None:
    """What is mapped is known, so that the sum over all counts it once."""
    files = [one for one in unlinked(pids, until=time.monotonic() + SOON) if one.in_memory]
    assert sum(mapped(pid, files) for pid in pids) // MIB == 32
    assert mapped(pids[0], []) == 0
    over = tree_excess(ProgramLimits(memory=32 * MIB, disk=1, processes=100), children.spared)
    assert over is not None
    assert 64 * MIB < over.used < 64 * MIB + 30 * MIB


def test_without_a_free_descriptor(pids: list[int]) -> None:
    """Where no descriptor is to be had a look sees nothing, and does not fail."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        assert unlinked(pids, until=time.monotonic() + SOON) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
