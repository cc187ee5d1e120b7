"""What programs use is measured as it is: each page and each file once, nothing of the driver's own."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.to_thread import run_sync

from driver.process.children import Children
from driver.process.disk import INODE_BYTES, DiskUse, disk_use, outermost
from driver.process.limits import Excess, ProgramLimits, tree_excess
from driver.process.orphans import sweep
from tests.driver.process.conftest import PYTHON

MIB = 1024 * 1024
SOON = 60.0


def limits(memory: int | None = None, processes: int = 1000) -> ProgramLimits:
    return ProgramLimits(memory=memory, disk=1, processes=processes)


@pytest.fixture
def holder(children: Children) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that holds 64 MiB, shared with three forks of it."""
    script = (
        "import os, time\nheld = b'x' * (64 << 20)\nfor _ in range(3):\n"
        "  if os.fork() == 0: break\nprint('ready', flush=True)\ntime.sleep(60)"
    )
    process = subprocess.Popen([*PYTHON, script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(4):
        process.stdout.readline()
    yield process
    process.stdout.close()
    process.kill()
    process.wait()


async def end(process: "subprocess.Popen[bytes]", children: Children) -> None:
    process.kill()
    await run_sync(process.wait)
    await sweep(children)


@pytest.mark.anyio
async def test_shared_pages_count_once(holder: "subprocess.Popen[bytes]", children: Children) -> None:
    """64 MiB in four processes that share them are 64 MiB, not 256."""
    assert tree_excess(limits(memory=160 * MIB), children.spared) is None
    excess = tree_excess(limits(memory=60 * MIB), children.spared)
    assert excess is not None
    assert (excess.reason, excess.limit) == ("memory", 60 * MIB)
    assert 64 * MIB < excess.used < 160 * MIB
    await end(holder, children)


@pytest.mark.anyio
async def test_processes_are_counted(holder: "subprocess.Popen[bytes]", children: Children) -> None:
    """Each process below counts, except those that the driver keeps for itself."""
    assert tree_excess(limits(processes=4), children.spared) is None
    assert tree_excess(limits(processes=3), children.spared) == Excess("processes", 3, 4)
    kept = Children(spared=[*children.spared(), holder.pid])
    assert tree_excess(limits(processes=0), kept.spared) is None
    await end(holder, children)


def test_disk_use(tmp_path: Path) -> None:
    """Blocks are counted, a hard-linked file once, a hole not at all, and no link is followed."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"x" * MIB)
    root = tmp_path / "root"
    (root / "deep/er").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path)
    (root / "file-link").symlink_to(outside)
    (root / "deep/er/file").write_bytes(b"x" * MIB)
    os.link(root / "deep/er/file", root / "again")
    with open(root / "sparse", "wb") as sparse:
        sparse.truncate(100 * MIB)
    use = disk_use([root], until=time.monotonic() + SOON, enough=1 << 40)
    assert use.complete
    assert MIB <= use.bytes < MIB + 64 * 1024


def test_disk_use_is_bounded(tmp_path: Path) -> None:
    """A look that runs out of time says so, and one that has seen enough stops."""
    for number in range(20):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}/file").write_bytes(b"x" * MIB)
    assert disk_use([tmp_path], until=0.0, enough=1) == DiskUse(0, complete=False)
    use = disk_use([tmp_path], until=time.monotonic() + SOON, enough=2 * MIB)
    assert 2 * MIB < use.bytes < 4 * MIB


def test_vanished_roots(tmp_path: Path) -> None:
    """A directory that is not there holds nothing."""
    assert disk_use([tmp_path / "gone"], until=time.monotonic() + SOON, enough=1) == DiskUse(0, complete=True)


def test_outermost() -> None:
    """A directory below another one is not measured twice."""
    paths = [Path("/w/work"), Path("/w/out"), Path("/w/work/home"), Path("/w/work-2"), Path("/w/work")]
    assert outermost(paths) == (Path("/w/out"), Path("/w/work"), Path("/w/work-2"))


def test_disk_use_that_is_hidden(tmp_path: Path) -> None:
    """Neither a directory that shuts out its owner nor a path that the kernel does not take hides a file."""
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "file").write_bytes(b"x" * MIB)
    deep = os.open(tmp_path, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("d" * 250, dir_fd=deep)
        above, deep = deep, os.open("d" * 250, os.O_RDONLY, dir_fd=deep)
        os.close(above)
    file = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=deep)
    os.write(file, b"x" * 2 * MIB)
    os.close(file)
    os.close(deep)
    closed.chmod(0)
    use = disk_use([tmp_path], until=time.monotonic() + SOON, enough=1 << 40)
    assert use.complete
    assert 3 * MIB <= use.bytes < 4 * MIB


def test_files_without_content_cost(tmp_path: Path) -> None:
    """Each file takes an inode and a name, whatever the disk says."""
    for number in range(500):
        (tmp_path / str(number)).touch()
    use = disk_use([tmp_path], until=time.monotonic() + SOON, enough=1 << 40)
    assert 500 * INODE_BYTES <= use.bytes < 600 * INODE_BYTES
