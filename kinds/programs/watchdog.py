"""The program's own watchdog: it ends a program that does not end itself."""

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Watchdog:
    """Unless the block is left in time, calls `last_words` and ends the process with `exit`.

    It runs in a thread of its own, so it also ends a program whose event loop is stuck.
    """

    def __init__(self, seconds: float, exit: int, last_words: Callable[[], None]) -> None:
        self._seconds = seconds
        self._exit = exit
        self._last_words = last_words
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        if self._done.wait(self._seconds):
            return
        try:
            self._last_words()
        finally:
            os._exit(self._exit)
