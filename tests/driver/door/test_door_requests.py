"""What programs may send to the door: codings, bounds, and texts that two readers could read in two ways."""

import gzip
import importlib
import json
import os
import socket
import sys
import zlib
from typing import Any

import anyio
import pytest

from driver.door import requests
from driver.door.permits import Budgets, Storage, TransportPermits
from driver.http1 import Exchange, Patience
from tests.driver.door.support import MODEL, Scene, reply, scene

pytestmark = pytest.mark.anyio

LIMIT = 16 << 20


def zstd() -> Any:
    """The standard library's module, or the package that brings it to older Pythons."""
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    return importlib.import_module(name) if sys.version_info >= (3, 14) else pytest.importorskip(name)


def request_of(size: int, *, random: bool = False) -> bytes:
    """A valid request of exactly so many bytes."""
    before, after = b'{"model":"model-1","input":"', b'"}'
    filling = size - len(before) - len(after)
    text = os.urandom(filling // 2 + 1).hex().encode()[:filling] if random else b"x" * filling
    return before + text + after


async def told(here: Scene, body: bytes, *headers: tuple[str, str]) -> tuple[int, str | None]:
    answer = await here.client.post("/v1/responses", content=body, headers=list(headers))
    return answer.status_code, answer.json().get("code")


@pytest.mark.parametrize(("size", "steps"), [(65_536, 1), (65_537, 2), (LIMIT, 256)])
def test_a_request_is_checked_in_short_steps(size: int, steps: int) -> None:
    """The event loop gets its turn after every 64 KiB, however long the request is."""
    assert len(list(requests.checks(request_of(size), MODEL))) == steps


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize(("extra", "status"), [(-1, 200), (0, 200), (1, 413)])
@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_decoded_size_is_bounded(coding: str, extra: int, status: int, random: bool) -> None:
    """A compressed request may be 16 MiB after decoding, and not one byte more; it passes as it came."""
    encode = zstd().compress if coding == "zstd" else lambda data: gzip.compress(data, 1)
    body = encode(request_of(LIMIT + extra, random=random))
    async with scene(reply(200, b"{}")) as here:
        answer = await told(here, body, ("content-encoding", coding))
        assert answer == ((200, None) if status == 200 else (413, "request_too_large"))
        assert here.provider.bodies == ([body] if status == 200 else [])
        if status == 200:
            assert here.provider.requests[0].header("content-encoding") == coding


async def test_bomb_is_refused_cheaply() -> None:
    """A small body that decodes to gigabytes is refused at the bound."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(512)) + packer.flush()
    async with scene(reply(200, b"{}")) as here:
        assert await told(here, bomb, ("content-encoding", "gzip")) == (413, "request_too_large")


async def test_zstd_window_is_bounded() -> None:
    """A body whose decoding would take a window of more than 8 MiB is refused (RFC 9659)."""
    module = zstd()
    for log, status in ((23, 200), (24, 400)):
        options = {module.CompressionParameter.window_log: log, module.CompressionParameter.checksum_flag: 1}
        packer = module.ZstdCompressor(options=options)
        body = packer.compress(request_of(9 << 20)) + packer.flush()
        async with scene(reply(200, b"{}")) as here:
            assert (await told(here, body, ("content-encoding", "zstd")))[0] == status


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_only_one_whole_stream_passes(coding: str) -> None:
    """A compressed body that is cut, followed by more, or none at all reaches no provider."""
    encode = zstd().compress if coding == "zstd" else gzip.compress
    good = encode(request_of(1000))
    async with scene(reply(200, b"{}")) as here:
        for body in (good[:-1], good + good, good + b"x", b"x" * 100, b""):
            assert await told(here, body, ("content-encoding", coding)) == (400, "malformed_request")
        assert here.provider.requests == []


@pytest.mark.parametrize(
    "headers",
    [
        [("content-encoding", "br")],
        [("content-encoding", "gzip, gzip")],
        [("content-encoding", "identity"), ("content-encoding", "gzip")],
        [("content-encoding", "gzip"), ("content-encoding", "identity")],
    ],
)
async def test_other_codings_are_refused(headers: list[tuple[str, str]]) -> None:
    """Of content codings the door takes one that it knows, told once; the provider could read two another way."""
    async with scene(reply(200, b"{}")) as here:
        assert await told(here, gzip.compress(request_of(100)), *headers) == (415, "encoding_not_supported")
        assert here.provider.requests == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"model-1","Model":"other"}',
        b'{"MODEL":"other","model":"model-1"}',
        b'{"model":"model-1","\\u004dodel":"other"}',
        '{"model":"other","x":"\u7b22\u6d6f\u6465\u6c22"}'.encode("utf-16-le"),
        json.dumps({"model": MODEL}).encode("utf-32"),
        b'{"model":"model-1","x":"\0"}',
    ],
)
async def test_text_that_others_read_in_another_way_is_refused(body: bytes) -> None:
    """Nothing passes that a parser which ignores case, or guesses an encoding, would read as another model."""
    async with scene(reply(200, b"{}")) as here:
        assert (await told(here, body))[0] in (400, 403)
        assert here.provider.requests == []


@pytest.mark.parametrize("query", ["x" * 60_000, "a=%zz&'b'=[c]", "a=b#c", "?"])
async def test_any_query_passes(query: str) -> None:
    """A query of whatever form and length goes on as it is."""
    async with scene(reply(200, b"{}")) as here:
        await raw_call(here, b"POST /v1/messages?" + query.encode() + b" HTTP/1.1\r\n", b'{"model":"model-1"}')
        assert here.provider.requests[0].target == "/internal/agent/model/v1/messages?" + query
        assert here.door.statistics()["answered"] == 1


async def raw_call(here: Scene, line: bytes, body: bytes = b"") -> bytes:
    """What the door answers to exact bytes, on a connection that is closed then."""
    host, port = here.door.url.removeprefix("http://").split(":")
    async with await anyio.connect_tcp(host, int(port)) as stream:
        head = b"Host: x\r\nConnection: close\r\nx-api-key: " + here.door.key.encode() + b"\r\n"
        await stream.send(line + head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = b""
        try:
            while True:
                answer += await stream.receive()
        except anyio.EndOfStream:
            return answer


@pytest.mark.parametrize("line", [b"POST http://x/v1/responses HTTP/1.1\r\n", b"POST /v1/%72esponses HTTP/1.1\r\n"])
async def test_other_spellings_of_a_route(line: bytes) -> None:
    """A route is the same in each of its spellings, and the gateway sees its own."""
    async with scene(reply(200, b"{}")) as here:
        assert (await raw_call(here, line, b'{"model":"model-1"}')).startswith(b"HTTP/1.1 200")
        assert here.provider.requests[0].target == "/internal/agent/model/v1/responses"


async def test_chunked_request_is_reserved_as_it_comes() -> None:
    """A body of untold length is refused once it does not fit the storage, however it is told."""

    async def parts() -> Any:
        for _ in range(40):
            yield b"x" * 100_000

    async with scene(reply(200, b"{}"), budgets=Budgets(storage=Storage(2_000_000))) as here:
        answer = await here.client.post("/v1/responses", content=parts())
        assert (answer.status_code, answer.json()["code"]) == (429, "local_capacity")
        assert here.provider.requests == []


async def test_connection_lives_through_refusals() -> None:
    """After each refusal of a request that was read, the next one is served on the same connection."""
    async with scene(reply(200, b"{}")) as here:
        host, port = here.door.url.removeprefix("http://").split(":")
        key = b"x-api-key: " + here.door.key.encode() + b"\r\n"
        good = b'{"model":"model-1"}'
        calls: list[tuple[bytes, bytes, bytes, bytes]] = [
            (b"GET /v1/models", b"", b"", b"401"),
            (b"GET /v1/none", key, b"", b"404"),
            (b"GET /v1/responses", key, b"", b"405"),
            (b"POST /v1/responses", key, b'{"model":"other"}', b"403"),
            (b"POST /v1/responses", key, b'{"model":', b"400"),
            (b"POST /v1/responses", key + b"Content-Encoding: br\r\n", good, b"415"),
            (b"POST /v1/responses", key, good, b"200"),
        ]
        async with await anyio.connect_tcp(host, int(port)) as stream:
            for line, headers, body, status in calls:
                await stream.send(line + b" HTTP/1.1\r\nHost: x\r\n" + headers)
                await stream.send(b"Content-Length: %d\r\n\r\n" % len(body) + body if body else b"\r\n")
                answer = await stream.receive()
                while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
                    answer += await stream.receive()
                assert answer[9:12] == status
                assert b"connection: close" not in answer


async def test_program_that_resets_while_it_is_refused_harms_nobody() -> None:
    """A program that vanishes as its refusal goes out ends its own call only: the door serves on."""
    budgets = Budgets(transports=TransportPermits(active=1, queue=0))
    async with scene(reply(200, b"{}"), budgets=budgets) as here:
        host, port = here.door.url.removeprefix("http://").split(":")
        head = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nx-api-key: " + here.door.key.encode()
        async with budgets.transports.hold(lambda _: None):
            for _ in range(50):
                raw = socket.create_connection((host, int(port)))
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                raw.sendall(head + b"\r\n\r\n")
                raw.close()
            await anyio.wait_all_tasks_blocked()
        assert (await here.post()).status_code == 200


async def test_program_that_stops_sending_is_told() -> None:
    """The wait for a body is bounded: see the server's own test; the door makes a 408 of it that may come again."""

    async def never(exchange: Exchange) -> None:
        raise AssertionError

    async with scene(never, patience=Patience(body=0.05)) as here:
        host, port = here.door.url.removeprefix("http://").split(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            head = (
                b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nx-api-key: " + here.door.key.encode()
            )
            await stream.send(head + b"\r\n\r\n{")
            answer = await stream.receive()
            assert answer.startswith(b"HTTP/1.1 408")
            assert b"retry-after: 1\r\n" in answer
            assert b'"request_stalled"' in answer
        [released] = await here.lines.wait_for("model.call.released")
        assert (released["end"], released["active"]) == ("refused", 0)
