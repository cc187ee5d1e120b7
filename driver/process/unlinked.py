"""What processes hold open and no directory shows: files in memory (memfd_create(2)), and files without a name."""

import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_BLOCK_BYTES: Final = 512  # as in driver.process.disk
_KIB: Final = 1024
_GONE: Final = " (deleted)"  # proc_pid_fd(5)


@dataclass(frozen=True)
class Unlinked:
    """An open file without a name: its device and inode, the bytes that it takes, and whether that is memory."""

    device: int
    inode: int
    bytes: int
    in_memory: bool


def unlinked(pids: Iterable[int], *, until: float) -> list[Unlinked]:
    """The files without a name that these processes hold open, each once; gives up at `until` (of `time.monotonic`).

    A process that forbids the look (PR_SET_DUMPABLE, prctl(2)) is left out, and so is everything where this process has
    no descriptor free.
    """
    try:
        memory = _device_of_memory()
    except OSError:
        return []
    found: dict[tuple[int, int], Unlinked] = {}
    for pid in pids:
        for status in _nameless(pid, until):
            found[status.st_dev, status.st_ino] = Unlinked(
                status.st_dev, status.st_ino, status.st_blocks * _BLOCK_BYTES, status.st_dev == memory
            )
    return list(found.values())


def mapped(pid: int, files: Iterable[Unlinked]) -> int:
    """The bytes of these files that are counted in the process's proportional size, since it has mapped them."""
    wanted = {(f"{os.major(one.device):02x}:{os.minor(one.device):02x}", str(one.inode)) for one in files}
    total, counts = 0, False
    try:
        with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                words = line.split(maxsplit=5)
                if not words[0].endswith(":"):
                    counts = (words[3], words[4]) in wanted
                elif counts and words[0] == "Pss:":
                    total += int(words[1]) * _KIB
    except OSError:
        pass  # it has ended, or forbids the look
    return total


def _nameless(pid: int, until: float) -> Iterator[os.stat_result]:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for number in descriptors:
        if time.monotonic() >= until:
            return
        path = f"/proc/{pid}/fd/{number}"
        try:
            # Read first, as it asks no file system: one that hangs would keep the look.
            if not os.readlink(path).endswith(_GONE):
                continue
            status = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
            yield status


def _device_of_memory() -> int:
    """The device of all files that are in memory only: the kernel has one mount for them."""
    file = os.memfd_create("")
    try:
        return os.fstat(file).st_dev
    finally:
        os.close(file)
