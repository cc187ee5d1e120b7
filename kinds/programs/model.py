"""The model client: one call of a session, tried again as the rules say.

Streamed where the provider streams. An answer counts only once its last event came: a stream that ends
before it is cut, and tried again.
"""

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import anyio

from kinds.programs.errors import (
    CallBusy,
    CallCut,
    CallFault,
    CallRefused,
    CallUnanswered,
    ContextFull,
    DoorClosed,
    FrameTooLarge,
    NotAdmitted,
)
from kinds.programs.exchange import Answer, Body, Door, Patience, exchange
from kinds.programs.retry import RETRIES, Backoff, retry_after
from kinds.programs.sse import FrameParser
from kinds.programs.transcript import Transcript
from kinds.programs.usage import UsageLedger
from kinds.programs.wires import (
    Features,
    Reader,
    Tool,
    Turn,
    Wire,
    decode,
    explain,
    mapping,
    string,
    tells_full,
)

_MIB = 1024 * 1024
FRAME_BYTES: Final = 4 * _MIB
STREAM_BYTES: Final = 64 * _MIB
WHOLE_BYTES: Final = 4 * _MIB
_ERROR_BYTES: Final = 64 * 1024
_DRAIN_SECONDS: Final = 2.0
# What a provider answers when it does not know a field of the request.
_REFUSES_FIELD: Final = frozenset({400, 404, 405, 415, 422})
_CLOSED: Final = frozenset({401, 403, 409, 410})
_LOCAL_CAPACITY: Final = "local_capacity"
_NOT_ADMITTED: Final = "digest_not_admitted"


class Watcher(Protocol):
    """Who is told about tries, so that a person can follow them."""

    def retrying(self, error: CallFault, seconds: float) -> None:
        """A try failed; the next one comes after this many seconds."""
        ...


@dataclass(frozen=True)
class Waits:
    """Time and chance, as the client sees them. Tests give their own."""

    wall: Callable[[], float]
    patience: Patience = field(default_factory=Patience)
    chance: random.Random = field(default_factory=random.Random)
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    retries: int = RETRIES


class ModelClient:
    """Calls one model on one wire. Sessions share it: what a provider refused is left out for all."""

    def __init__(
        self,
        door: Door,
        wire: Wire,
        model: str,
        *,
        system: str,
        tools: Sequence[Tool],
        waits: Waits,
        usage: UsageLedger,
        features: Features = Features(),  # noqa: B008 # frozen
    ) -> None:
        """`features` are what is asked of the provider at first."""
        self.wire = wire
        self._door = door
        self._model = model
        self._system = system
        self._tools = tuple(tools)
        self._waits = waits
        self._usage = usage.of(model)
        self._features = features

    async def ask(self, transcript: Transcript, watcher: Watcher) -> Turn:
        """The model's next turn.

        Raises CallUnanswered once every try was spent, ContextFull, DoorClosed or CallRefused.
        """
        backoff = Backoff(self._waits.chance, self._waits.retries)
        while True:
            features = self._features
            try:
                turn = await self._once(transcript, features)
            except (CallCut, CallBusy) as error:
                await self._wait(backoff, error, watcher)
            except CallRefused as error:
                self._leave_out(features, error)
            else:
                self._usage.add(turn.usage)
                return turn

    async def _wait(self, backoff: Backoff, error: CallFault, watcher: Watcher) -> None:
        seconds = backoff.after(error)
        if seconds is None:
            raise CallUnanswered(f"no answer after {backoff.spent + 1} tries; the last: {error}") from error
        self._usage.retries += 1
        self._usage.waited += seconds
        watcher.retrying(error, seconds)
        await self._waits.sleep(seconds)

    def _leave_out(self, features: Features, error: CallRefused) -> None:
        """Go on without the feature that the refusal names; re-raise one that names none."""
        if isinstance(error, DoorClosed) or error.status not in _REFUSES_FIELD:
            raise error
        fewer = features.without(str(error))
        if fewer is None:
            raise error
        # Another session may have learned the same in the meantime.
        if self._features == features:
            self._features = fewer

    async def _once(self, transcript: Transcript, features: Features) -> Turn:
        before, after = self.wire.frame(self._model, self._system, self._tools, features)
        length = len(before) + transcript.encoded_bytes + len(after)
        headers = [*self.wire.headers(self._door.key), ("accept", "text/event-stream, application/json")]
        self._usage.calls += 1
        body = Body(length, _pieces(before, transcript, after))
        async with exchange(self._door, self.wire.path, headers, body, self._waits.patience) as answer:
            if answer.status != 200:
                raise await refusal(answer, self._waits.wall)
            try:
                if answer.header("content-type").startswith("text/event-stream"):
                    return await _streamed(answer, self.wire.reader())
                return self.wire.whole(decode(await answer.read(WHOLE_BYTES)))
            except RecursionError as error:
                raise CallRefused("the answer is nested too deeply to go back to the provider") from error


async def refusal(answer: Answer, wall: Callable[[], float]) -> CallFault:
    """The exception for an answer whose status is not 200."""
    detail, code = await _complaint(answer)
    facts = f"{answer.status} {detail}".rstrip()
    if answer.status == 429 or answer.status >= 500 or answer.status == 408:
        wish = retry_after(answer.header("retry-after"), wall)
        return CallBusy(facts, retry_after=wish, local=code == _LOCAL_CAPACITY)
    if answer.status == 403 and code == _NOT_ADMITTED:
        return NotAdmitted(facts, status=answer.status)
    if answer.status in _CLOSED:
        return DoorClosed(facts, status=answer.status)
    if tells_full(detail) or answer.status == 413:
        return ContextFull(facts)
    return CallRefused(facts, status=answer.status)


async def _complaint(answer: Answer) -> tuple[str, str]:
    """The detail and the code of an error body; a body that is none changes nothing, the status decides."""
    try:
        body = await answer.read(_ERROR_BYTES)
    except CallFault:
        return "", ""
    try:
        document = decode(body)
    except CallCut:
        return body[:300].decode("utf-8", "replace"), ""
    return explain(document), _code_of(document)


def _code_of(document: dict[str, Any]) -> str:
    """The code of a problem document, or of an error in the shape of a wire: the `code` or else the `type` in it."""
    error = mapping(document.get("error"))
    codes = (string(document.get("code")), string(error.get("code")), string(error.get("type")))
    return next((code for code in codes if code), "")


async def _streamed(answer: Answer, reader: Reader) -> Turn:
    parser = FrameParser(FRAME_BYTES)
    received = 0
    while chunk := await answer.receive():
        received += len(chunk)
        if received > STREAM_BYTES:
            raise CallRefused(f"the streamed answer is over {STREAM_BYTES} bytes")
        if _feed(parser, reader, chunk):
            await _drain(answer)
            return reader.turn()
    raise CallCut("the stream ended without its last event")


def _feed(parser: FrameParser, reader: Reader, chunk: bytes) -> bool:
    try:
        return any(reader.feed(frame) for frame in parser.feed(chunk))
    except FrameTooLarge as error:
        raise CallRefused(str(error)) from error


async def _drain(answer: Answer) -> None:
    """Read on to the end, so that the door sees a whole exchange and not a program that went away."""
    with anyio.move_on_after(_DRAIN_SECONDS):
        try:
            while await answer.receive():
                pass
        except CallCut:
            return  # the answer was complete before the connection broke


def _pieces(before: bytes, transcript: Transcript, after: bytes) -> Iterator[bytes]:
    yield before
    yield from transcript.chunks()
    yield after
