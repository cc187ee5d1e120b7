"""Passes one answer of the gateway on to the program, unchanged, and reads from it what the run counts."""

from collections.abc import Callable
from functools import partial
from typing import Final

from anyio.lowlevel import checkpoint

from driver.clock import Clock
from driver.door.call import Call
from driver.door.frames import FRAME_BYTES, FrameReader, check_answer
from driver.door.headers import to_program
from driver.door.jsonscan import JsonRefused
from driver.door.permits import ParsingPermit, Retained
from driver.door.steps import in_step
from driver.door.upstream import Answer
from driver.door.wires import Reading
from driver.errors import DoorRefusal
from driver.http1 import Exchange
from driver.http1.server_connection import RECEIVED_BYTES

_EVENT_STREAM: Final = "text/event-stream"
_LARGE_BYTES: Final = 256 * 1024

PASSING_BYTES: Final = 4 * RECEIVED_BYTES
"""What passing an answer on takes, but for its incomplete frame: bytes read ahead, being cut, and being sent."""


class Passing:
    """One answer on its way.

    It reads on only when the program has taken what came before. The head goes out with the first bytes of the
    body, so that an answer which breaks off before them can still be refused. `retained` holds PASSING_BYTES.
    """

    def __init__(
        self,
        exchange: Exchange,
        call: Call,
        answer: Answer,
        retained: Retained,
        parsing: ParsingPermit,
        clock: Clock,
    ) -> None:
        self._exchange = exchange
        self._call = call
        self._answer = answer
        self._retained = retained
        self._parsing = parsing
        self._clock = clock

    async def run(self) -> None:
        """Pass the whole answer on. Raises DoorRefusal when it breaks off, is incomplete, or past a bound."""
        self._call.status = self._answer.status
        if self._answer.status == 200 and self._call.route.reading is not None:
            self._call.reading = self._call.route.reading()
        if self._call.reading is not None and self._answer.header("content-type").startswith(_EVENT_STREAM):
            await self._pass_stream(self._call.reading)
        else:
            await self._pass_whole(self._call.reading)
        await self._start()
        await self._exchange.finish()
        self._call.answered()

    async def _pass_stream(self, reading: Reading) -> None:
        if self._answer.header("content-encoding") not in ("", "identity"):
            raise DoorRefusal(502, "encoded_answer", "the gateway encoded an event stream though none was asked for")
        reader = FrameReader()
        while data := await self._answer.receive():
            await self._pass_frames(reading, partial(reader.feed, data))
            self._retained.resize(reader.held + PASSING_BYTES)
        # What stands behind the last blank line is no event, but clients differ in what they make of it.
        await self._pass_frames(reading, reader.rest)
        if not reading.terminal:
            raise DoorRefusal(502, "answer_incomplete", "the answer ended without its last event")

    async def _pass_frames(self, reading: Reading, cut: Callable[[], list[bytes]]) -> None:
        async with self._parsing.hold():
            frames = cut()
            for frame in frames:
                if reading.glance(frame):
                    await self._decode(reading, frame)
            whole = b"".join(frames)
            if len(whole) > _LARGE_BYTES:
                await checkpoint()  # the next such step is for another turn of the event loop
        if reading.content and self._call.first_content is None:
            self._call.first_content = self._clock.now()
        if whole:
            await self._send(whole)
        if reading.terminal:
            # It has all that it waits for, and need not stay for the end of the stream.
            self._call.answered()

    async def _decode(self, reading: Reading, frame: bytes) -> None:
        try:
            await in_step(len(frame), lambda: reading.decode(frame))
        except JsonRefused as error:
            raise DoorRefusal(502, "malformed_frame", f"an event of the answer is not valid: {error}") from error

    async def _pass_whole(self, reading: Reading | None) -> None:
        kept = bytearray()
        total = 0
        readable = reading is not None and self._answer.header("content-encoding") in ("", "identity")
        while data := await self._answer.receive():
            total += len(data)
            check_answer(total)
            if readable and total <= FRAME_BYTES:
                self._retained.resize(total + PASSING_BYTES)
                kept += data
            await self._send(data)
        if reading is not None and kept and len(kept) == total:
            await self._read_usage(reading, kept)

    async def _read_usage(self, reading: Reading, body: bytearray) -> None:
        async with self._parsing.hold():
            try:
                await in_step(len(body), lambda: reading.whole(body))
            except JsonRefused:
                return  # the program has it all and will judge it; its tokens count as unmeasured

    async def _send(self, data: bytes) -> None:
        await self._start()
        await self._exchange.send(data)

    async def _start(self) -> None:
        if self._exchange.started:
            return
        headers = to_program(self._answer.headers)
        if self._call.reading is not None and self._answer.header("content-type").startswith(_EVENT_STREAM):
            # A length would make an answer look whole that lacks its last event.
            headers = [(key, value) for key, value in headers if key != "content-length"]
        await self._exchange.start(self._answer.status, headers)
