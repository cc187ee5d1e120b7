"""The driver's end of the line to a program's keeper (driver.process.keeper)."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio

_KEEPER: Final = (sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")))
_TOLD_BYTES: Final = 16


def needs_keeper() -> bool:
    """Whether programs would outlive this process: the end of PID 1 is the end of every process of its namespace."""
    return os.getpid() != 1


class Line:
    """Two pipes: the keeper sees the end of the first when this process ends, and tells by the second what failed.

    Raises OSError where there are no descriptors.
    """

    def __init__(self) -> None:
        self._life, self._alive = os.pipe2(os.O_CLOEXEC)
        try:
            self._tells, self._told = os.pipe2(os.O_CLOEXEC)
        except OSError:
            os.close(self._life)
            os.close(self._alive)
            raise
        self._open = {self._life, self._alive, self._tells, self._told}

    def command(self, argv: Sequence[str]) -> list[str]:
        """The keeper's command for a program."""
        return [*_KEEPER, str(self._life), str(self._told), *argv]

    @property
    def passed(self) -> tuple[int, int]:
        """The descriptors that the keeper inherits."""
        return self._life, self._told

    def hand_over(self) -> None:
        """The keeper has its ends."""
        for fd in self.passed:
            self._close(fd)

    async def fault(self) -> int | None:
        """The errno of a program that cannot be started, or None once it is.

        Also None where the keeper has ended without a word: that end tells more.
        """
        await anyio.wait_readable(self._tells)
        told = os.read(self._tells, _TOLD_BYTES)
        self._close(self._tells)
        with suppress(ValueError):
            return int(told)
        return None

    def close(self) -> None:
        """Let go of the line; a keeper that is still there ends all that is below it."""
        for fd in tuple(self._open):
            self._close(fd)

    def _close(self, fd: int) -> None:
        self._open.discard(fd)
        os.close(fd)
