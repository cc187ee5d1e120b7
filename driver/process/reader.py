"""Reads what a program prints and logs it line by line."""

import fcntl
import os
import struct
import termios
from collections.abc import Iterable
from typing import Final, Literal

import anyio
from anyio.lowlevel import cancel_shielded_checkpoint

from driver.log import Log
from driver.process.output import LineSplitter, OutputBudget, Tail

# Of the smallest lines, what is read at once is split and logged within some milliseconds.
_READ_BYTES: Final = 16 * 1024
_DROP_BYTES: Final = 64 * 1024
_LINES_A_TURN: Final = 64


class PipeReader:
    """Logs the lines of one pipe as `program.output`, from its first byte to the end of the program.

    The pipe may outlive the program, held open by something that the program left. So the end is told by
    `finish`, and what the pipe holds at that moment is still read, without waiting for more.

    Once the budget is spent lines are dropped, and the last of them logged when the program has ended.
    """

    def __init__(self, fd: int, stream: Literal["stdout", "stderr"], *, log: Log, budget: OutputBudget) -> None:
        self._fd = fd
        self._stream = stream
        self._log = log
        self._budget = budget
        self._lines = LineSplitter(log.secrets)
        self._tail: Tail | None = None
        self._until_finished = anyio.CancelScope(shield=True)

    def finish(self) -> None:
        """The program has ended: read what is in the pipe, and no more."""
        self._until_finished.cancel()

    async def run(self) -> None:
        """Read until end of file or `finish`, and close the pipe. Cannot be cancelled otherwise.

        It goes on while the program is being stopped: a full pipe would keep it from ending in order.
        """
        try:
            with self._until_finished:
                while await self._read_one():
                    pass
            await self._drain()
            await self._emit(self._lines.flush())
            if self._tail is not None:
                await self._emit_tail(self._tail)
        finally:
            anyio.notify_closing(self._fd)
            os.close(self._fd)

    async def _read_one(self) -> bool:
        await anyio.wait_readable(self._fd)
        return await self._handle_next(_DROP_BYTES if self._budget.spent else _READ_BYTES) != 0

    async def _drain(self) -> None:
        left = _bytes_waiting(self._fd)
        while left > 0 and (count := await self._handle_next(min(left, _READ_BYTES))) > 0:
            left -= count

    async def _handle_next(self, limit: int) -> int:
        """Read and handle what is there; 0 at the end of file, -1 if nothing is there after all."""
        try:
            data = os.read(self._fd, limit)
        except BlockingIOError:
            return -1  # a program can open its end through /proc and read it too
        await self._handle(data)
        return len(data)

    async def _handle(self, data: bytes) -> None:
        if not self._budget.spent:
            await self._emit(self._lines.feed(data))
        else:
            await self._emit(self._lines.flush())  # what comes now goes past the splitter, and after what it holds
            self._budget.drop(len(data))
            self._the_tail().add(data)

    async def _emit(self, lines: Iterable[str]) -> None:
        for number, line in enumerate(lines, 1):
            self._emit_one(line)
            if number % _LINES_A_TURN == 0:
                await cancel_shielded_checkpoint()

    def _emit_one(self, line: str) -> None:
        spent_before = self._budget.spent
        if self._budget.keep(line):
            self._log.info("program.output", text=line, stream=self._stream)
            return
        self._the_tail().add(line.encode() + b"\n")
        if not spent_before:
            self._log.warning("program.output_cut", stream=self._stream, limit_bytes=self._budget.limit)

    async def _emit_tail(self, tail: Tail) -> None:
        last: list[str] = []
        for lines in tail.lines():
            last += lines
            await cancel_shielded_checkpoint()
        kept = self._budget.keep_last(last)
        if kept:
            self._log.info("program.output_tail", stream=self._stream, lines=len(kept))
        for number, line in enumerate(kept, 1):
            self._log.info("program.output", text=line, stream=self._stream)
            if number % _LINES_A_TURN == 0:
                await cancel_shielded_checkpoint()

    def _the_tail(self) -> Tail:
        if self._tail is None:
            self._tail = Tail(self._log.secrets)
        return self._tail


def _bytes_waiting(fd: int) -> int:
    """How many bytes a pipe holds now (FIONREAD, pipe(7))."""
    count: int
    (count,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))
    return count
