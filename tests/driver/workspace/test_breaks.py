"""Downloads that break at any byte, by the gateway's real client from a real socket: the tree is the same each time."""

import random
import re
import socket
import struct
from pathlib import Path

import pytest

from driver.layout import Layout
from driver.log import Log, render_json
from driver.workspace.empty import empty
from driver.workspace.fetch import Fetch, Promise
from tests.driver.gateway.test_bulk import calls, head, serving
from tests.driver.workspace.archives import (
    END,
    block,
    directory,
    file,
    gnu_name,
    padded,
    pax,
    record,
    tree,
    with_writable,
)
from tests.driver.workspace.source import HandClock
from tests.driver.workspace.test_fetch import field

pytestmark = pytest.mark.anyio

LONG = "/".join(["n" * 100] * 3)
CONTENT: dict[str, bytes | None] = {
    "a": None,
    "a/one": bytes(range(256)) * 20,
    "a/empty": b"",
    "n" * 100: None,
    f"{'n' * 100}/{'n' * 100}": None,
    LONG: b"long" * 400,
    "sized": b"s" * 513,
    "run": b"#!",
}
ARCHIVE = (
    pax(record(b"comment", b"c" * 40), kind=b"g")
    + directory(b"a/")
    + file(b"a/one", bytes(range(256)) * 20)
    + file(b"a/empty")
    + gnu_name(LONG.encode())
    + block(b"x", size=1600, magic=b"ustar  \0")
    + padded(b"long" * 400)
    + pax(record(b"size", b"513"), record(b"mtime", b"1.5"))
    + block(b"sized")
    + padded(b"s" * 513)
    + file(b"run", b"#!", mode=b"0000755\0")
    + END
)
OTHER = file(b"left-behind", b"x" * 9000) + END


class Gateway:
    """Serves the archive; each connection breaks at the next of `stops`, closed, or reset as `rng` has it.

    What a resumed request is answered is `resumed`: "part" as it should be, or one of the wrong ways.
    """

    def __init__(
        self, stops: list[int], rng: random.Random | None = None, *, resumed: str = "part", first: bytes = ARCHIVE
    ) -> None:
        self._stops = stops
        self._rng = rng
        self._resumed = resumed
        self._first = first
        self.asked: list[int] = []

    def serve(self, connection: socket.socket, request: bytes) -> None:
        match = re.search(rb"\r\nrange: bytes=([0-9]+)-\r\nif-range: \"([a-z]+)\"\r\n", request)
        at = int(match[1]) if match else 0
        self.asked.append(at)
        archive = self._first if len(self.asked) == 1 else ARCHIVE
        etag = "one" if archive is self._first else "two"
        if match and match[2].decode() == etag and self._resumed != "whole":
            self._part(connection, archive, etag, at)
        else:
            self._send(connection, head("200 OK", f'etag: "{etag}"', f"content-length: {len(archive)}"), archive, 0)

    def _part(self, connection: socket.socket, archive: bytes, etag: str, at: int) -> None:
        last = len(archive) - 1
        ranges = {
            "part": f"content-range: bytes {at}-{last}/{len(archive)}",
            "another": f"content-range: bytes {at - 1}-{last}/{len(archive)}",
            "none": "x-content-range: none",
            "nonsense": f"content-range: bytes {at}-/{len(archive)}",
            "no end": f"content-range: bytes {at}-{last - 5}/{len(archive)}",
        }
        fields = (f'etag: "{etag}"', f"content-length: {len(archive) - at}")
        if self._resumed == "416":
            connection.sendall(head("416 No", f"content-range: bytes */{len(archive)}", "content-length: 0"))
        else:
            self._send(connection, head("206 Part", *fields, ranges[self._resumed]), archive, at)

    def _send(self, connection: socket.socket, start: bytes, archive: bytes, at: int) -> None:
        stop = self._stops.pop(0) if self._stops else None
        connection.sendall(start + archive[at : None if stop is None else max(stop, at)])
        if stop is not None and self._rng and self._rng.random() < 0.5:
            # With nothing to linger for the connection is reset; what is still on its way is lost.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def fetch(layout: Layout, gateway: Gateway) -> list[str]:
    """Download and unpack; the lines of the log."""
    clock = HandClock()
    lines: list[str] = []
    log = Log(lines.append, render=render_json, wall=clock.wall)
    with serving(gateway.serve) as port:
        async with calls(f"http://127.0.0.1:{port}") as run:
            promise = Promise(100_000, field(ARCHIVE))
            await Fetch(layout, promise, run.workspace, log=log, clock=clock, pauses=lambda _: 0.0).run()
    return lines


def executable(root: Path) -> list[str]:
    return [path.name for path in root.rglob("*") if path.is_file() and path.stat().st_mode & 0o111]


async def same_tree(layout: Layout, stops: list[int], rng: random.Random) -> Gateway:
    gateway = Gateway(list(stops), rng)
    await fetch(layout, gateway)
    assert tree(layout.root) == with_writable(CONTENT), stops
    assert executable(layout.root) == ["run"], stops
    empty(layout.root)
    return gateway


@pytest.mark.parametrize("rounds", [50, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
async def test_it_breaks_anywhere(layout: Layout, rounds: int) -> None:
    """However often a transfer breaks, in headers and in files, and however, the tree is what the archive holds.

    They break at two places on average: at a thousand in the long form.
    """
    rng = random.Random(rounds)
    for _ in range(rounds):
        stops = sorted(rng.randrange(len(ARCHIVE)) for _ in range(rng.choice((1, 1, 1, 2, 5))))
        gateway = await same_tree(layout, stops, rng)
        assert len(gateway.asked) == len(stops) + 1


async def test_it_breaks_at_every_header(layout: Layout) -> None:
    """One transfer breaks before, in and after each block."""
    stops = [at + off for at in range(0, len(ARCHIVE), 512) for off in (0, 1, 511)]
    gateway = await same_tree(layout, stops, random.Random(1))
    assert len(gateway.asked) == len(stops) + 1


@pytest.mark.parametrize("resumed", ["whole", "another", "none", "nonsense", "no end", "416"])
async def test_it_cannot_be_resumed(layout: Layout, resumed: str) -> None:
    """A gateway that ignores the range, or answers it with another one, sends all of it, and nothing is there twice."""
    gateway = Gateway([5000], resumed=resumed)
    lines = await fetch(layout, gateway)
    assert tree(layout.root) == with_writable(CONTENT)
    assert gateway.asked[1] == 5000
    assert gateway.asked[2:] == ([] if resumed == "whole" else [0])
    assert [line for line in lines if '"workspace.restarted"' in line]


async def test_it_is_another_archive_by_now(layout: Layout) -> None:
    """When the ETag has changed the new archive is unpacked from its start, and nothing of the old one is left."""
    gateway = Gateway([6000], first=OTHER)
    lines = await fetch(layout, gateway)
    assert tree(layout.root) == with_writable(CONTENT)
    assert gateway.asked == [0, 6000]
    assert [line for line in lines if "the archive has changed" in line]
