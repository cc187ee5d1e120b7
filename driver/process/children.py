"""The children of the driver that somebody waits for.

Whatever else is below the driver is an orphan, and is killed and reaped (driver.process.orphans). So each
child of the driver process is registered here from its first instant until it is reaped, and there is one
registry for the process.
"""

import threading
from collections.abc import Callable, Iterable


class Children:
    """A registry of waited pids, safe between the loop's thread and a thread that looks for orphans.

    `spared` are children that others wait for; they and all below them are never touched.
    """

    def __init__(self, spared: Iterable[int] = ()) -> None:
        self._spared = frozenset(spared)
        self._pids: set[int] = set()
        self._condemned: set[int] = set()
        self._lock = threading.Lock()

    def spared(self) -> set[int]:
        """The children that are not programs."""
        return set(self._spared)

    def waited(self) -> set[int]:
        """The pids that only their waiter may reap. A child that is just being started is in it already."""
        with self._lock:
            return self._pids | self._spared

    def kept(self) -> set[int]:
        """The waited pids whose trees may live: those that are not condemned."""
        with self._lock:
            return (self._pids - self._condemned) | self._spared

    def started(self, start: Callable[[], int]) -> int:
        """Call `start`, which starts a child and returns its pid, and register that pid.

        Nobody can see the child unregistered: `waited` does not answer in between.
        """
        with self._lock:
            pid = start()
            self._pids.add(pid)
            return pid

    def condemn(self, pid: int) -> None:
        """From now on whatever is below `pid`, and whatever it left in its session, may be killed and reaped."""
        with self._lock:
            self._condemned.add(pid)

    def reaped(self, pid: int, reap: Callable[[], int]) -> int:
        """Call `reap`, which takes the exit status of `pid`, and forget that pid.

        Nobody can take the pid's next owner for ours: `waited` does not answer in between.
        """
        with self._lock:
            status = reap()
            self._forget(pid)
            return status

    def abandoned(self, pid: int) -> None:
        """Nobody waits for `pid` any more: it is an orphan like any other."""
        with self._lock:
            self._forget(pid)

    def _forget(self, pid: int) -> None:
        self._pids.discard(pid)
        self._condemned.discard(pid)
