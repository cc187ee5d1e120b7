"""What the kernel holds a program to, from its first instruction.

The rights of a thread go to what it starts, and an exec keeps them. So each program is started by a thread of its
own that gives up rights first; a launcher between the driver and the program would cost every small helper the start of
another interpreter, and code between a fork and an exec is not safe where there are threads.
"""

import errno
import os
import resource
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

NICE: Final = 5
"""How much programs are nicer than the driver (setpriority(2)): a renewal comes before whatever they compute."""

OOM_SCORE: Final = 500
"""The kernel, short of memory, ends a program before the driver (proc_pid_oom_score_adj(5))."""

OPEN_FILES: Final = 65_536
"""How many files one process of a program may have open, where the container allows more."""

_NICEST: Final = 19
_RANK_TRIES: Final = 5
_RANK_PAUSE: Final = 0.001


@dataclass(frozen=True)
class Confinement:
    """`writable` are the directories that a program may write below, `file_bytes` how long one file may become.

    `hidden` are files that it may not read.
    """

    writable: tuple[Path, ...]
    file_bytes: int
    hidden: tuple[Path, ...] = ()

    def start(self, start: Callable[[], T]) -> T:
        """What `start` returns, called in a thread that has given up what a program may not have.

        Blocks. Raises what `start` raises, HardeningFailed, and OSError (EAGAIN) where no thread can be made.
        """
        results: list[T] = []
        failures: list[BaseException] = []

        def run() -> None:
            try:
                self._enter()
                results.append(start())
            except BaseException as error:  # raised again below
                failures.append(error)

        thread = threading.Thread(target=run, name="start")
        try:
            thread.start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
        thread.join()
        if failures:
            raise failures[0]
        return results[0]

    def _enter(self) -> None:
        # Imported here, as ctypes is slow to import.
        from driver.process import landlock

        landlock.forbid_new_privileges()
        if landlock.version():
            landlock.confine_thread(self.writable, self.hidden)
        os.setpriority(os.PRIO_PROCESS, 0, min(_NICEST, os.getpriority(os.PRIO_PROCESS, 0) + NICE))

    def limit(self, pid: int) -> None:
        """Set the limits of the process `pid`, which was just started.

        They are not a thread's but a process's, and the driver may not have them; what the program starts in the
        moment before may be without them. A program that has ended already needs none.
        """
        with suppress(ProcessLookupError):
            _lower(pid, resource.RLIMIT_FSIZE, self.file_bytes)
            _lower(pid, resource.RLIMIT_NOFILE, OPEN_FILES)
        # Where it cannot be written, the kernel ranks the program as it ranks the driver; the watch is still there.
        for _ in range(_RANK_TRIES):
            try:
                with open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as file:
                    file.write(str(OOM_SCORE))
                break
            except PermissionError:
                time.sleep(_RANK_PAUSE)  # the file is root's until the exec is over (driver.hardening)
            except OSError:
                break


def _lower(pid: int, limit: int, wanted: int) -> None:
    try:
        before = resource.prlimit(pid, limit, (wanted, wanted))
    except PermissionError:
        return  # the container, or the program itself by now, allows less
    soft, hard = (wanted if value == resource.RLIM_INFINITY else min(wanted, value) for value in before)
    if (soft, hard) != (wanted, wanted):
        resource.prlimit(pid, limit, (soft, hard))
