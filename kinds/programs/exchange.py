"""One HTTP/1.1 exchange with the door, on anyio and h11.

The door is a loopback server that this project wrote, so there is no pool, no redirect, no TLS and no
proxy here, and a program that starts cold does not pay for a library that has them (httpx alone: 90 ms).
What it needs in their place: a body that is a walk over bytes that exist already, a bound on the silence
before the first byte and another on each gap after it, and `Expect: 100-continue` (RFC 9110, 10.1.1), so
that a refusal of a call whose body nobody reads reaches us whole.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import anyio
import h11
from anyio.abc import ByteStream

from kinds.programs.errors import CallCut, CallRefused, InputsUnusable

_KIB = 1024
_READ_BYTES: Final = 64 * _KIB
_HEAD_BYTES: Final = 64 * _KIB
_CLOSE_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Patience:
    """How long each step may take, in seconds.

    A silent provider is cut by the gateway, after 300 s before the first byte and 120 s in a gap; so both
    bounds are a little longer here. The door lets a call wait 30 s for a permit before it wants the body.
    """

    connect: float = 10.0
    go_ahead: float = 40.0
    send: float = 120.0
    first_byte: float = 310.0
    gap: float = 130.0


@dataclass(frozen=True)
class Door:
    """Where the door is, and the key that it asks for."""

    host: str
    port: int
    prefix: str
    key: str

    @classmethod
    def at(cls, url: str, key: str) -> "Door":
        """The door at an `http://` address. Raises InputsUnusable."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or not key:
            raise InputsUnusable("DRIVER_DOOR_URL must be an http:// address, and DRIVER_DOOR_KEY must be set")
        return cls(parts.hostname, parts.port or 80, parts.path.rstrip("/"), key)


@dataclass(frozen=True)
class Body:
    """A JSON request body: its exact length and its pieces."""

    length: int
    pieces: Iterable[bytes]


class Answer:
    """The answer of an exchange: the head is there, the body comes as it arrives."""

    def __init__(self, call: "_Call", head: h11.Response) -> None:
        self._call = call
        self.status = head.status_code
        self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}

    def header(self, name: str) -> str:
        """A header's value, or an empty text. `name` is lower case."""
        return self._headers.get(name, "")

    async def receive(self) -> bytes:
        """The next part of the body, empty at its end. Raises CallCut when it breaks off or nothing comes."""
        event = await self._call.next_event()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if isinstance(event, h11.EndOfMessage):
            return b""
        raise CallCut("the answer broke off")

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises CallRefused once it is over `limit` bytes."""
        body = bytearray()
        while chunk := await self.receive():
            body += chunk
            if len(body) > limit:
                raise CallRefused(f"the answer is over {limit} bytes")
        return bytes(body)


@asynccontextmanager
async def exchange(
    door: Door, path: str, headers: list[tuple[str, str]], body: Body, patience: Patience
) -> AsyncIterator[Answer]:
    """POST a body to the door. The connection is closed when the block is left.

    Raises CallCut when it cannot be sent or answered in time.
    """
    try:
        with anyio.fail_after(patience.connect):
            stream = await anyio.connect_tcp(door.host, door.port)
    except (OSError, TimeoutError) as error:
        raise CallCut(f"the door cannot be reached ({str(error) or 'time-out'})") from error
    try:
        call = _Call(stream, patience)
        yield Answer(call, await call.ask(door, path, headers, body))
    finally:
        await anyio.aclose_forcefully(stream)


class _Call:
    def __init__(self, stream: ByteStream, patience: Patience) -> None:
        self._stream = stream
        self._patience = patience
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        self._wait = patience.go_ahead
        self._silent_until: float | None = None

    async def ask(self, door: Door, path: str, headers: list[tuple[str, str]], body: Body) -> h11.Response:
        await self._send(
            h11.Request(
                method="POST",
                target=door.prefix + path,
                headers=[
                    ("host", f"{door.host}:{door.port}"),
                    ("connection", "close"),
                    ("content-type", "application/json"),
                    ("content-length", str(body.length)),
                    ("expect", "100-continue"),
                    *headers,
                ],
            )
        )
        head = await self._go_ahead()
        if head is not None:
            return head
        await self._send_body(body)
        self._silent_until = anyio.current_time() + self._patience.first_byte
        while True:
            event = await self.next_event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise CallCut("the door closed the connection without an answer")

    async def _send_body(self, body: Body) -> None:
        # In a frame of its own: the last piece would else be held for as long as the answer takes.
        for piece in body.pieces:
            await self._send(h11.Data(data=piece))
        await self._send(h11.EndOfMessage())

    async def _go_ahead(self) -> h11.Response | None:
        """None when the body is wanted (or nobody says so in time), else the answer that came in its place."""
        try:
            event = await self._parse()
        except TimeoutError:
            return None
        if isinstance(event, h11.Response):
            return event
        if isinstance(event, h11.InformationalResponse):
            return None
        raise CallCut("the door closed the connection without an answer")

    async def next_event(self) -> "h11.Event | type[h11.PAUSED]":
        """The next event, within the first byte's time until a body byte came, and a gap's from then on."""
        limit = self._patience.gap
        if self._silent_until is not None:
            limit = max(self._silent_until - anyio.current_time(), 0)
        self._wait = limit
        try:
            event = await self._parse()
        except TimeoutError as error:
            raise CallCut(f"nothing came for {limit:.0f} s") from error
        if isinstance(event, h11.Data):
            self._silent_until = None
        return event

    async def _parse(self) -> "h11.Event | type[h11.PAUSED]":
        try:
            while (event := self._h11.next_event()) is h11.NEED_DATA:
                with anyio.fail_after(self._wait):
                    self._h11.receive_data(await self._receive())
        except h11.RemoteProtocolError as error:
            raise CallCut(f"the answer broke off ({error})") from error
        return event  # type: ignore[return-value] # NEED_DATA is the only other sentinel

    async def _receive(self) -> bytes:
        try:
            return await self._stream.receive(_READ_BYTES)
        except anyio.EndOfStream:
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise CallCut("the connection broke") from error

    async def _send(self, event: h11.Event) -> None:
        data = self._h11.send(event)
        if not data:
            return
        try:
            with anyio.fail_after(self._patience.send):
                await self._stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise CallCut("the connection broke") from error
        except TimeoutError as error:
            raise CallCut(f"the door took no part of the call for {self._patience.send:.0f} s") from error
