"""A client that costs next to nothing: raw requests over asyncio streams, raw bytes back.

`python -m bench.load URL KEY PROFILE` makes the calls of one profile and prints its samples as one JSON line.
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

_KIB: Final = 1024
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"


@dataclass(frozen=True)
class Profile:
    """`calls` in a row by each of `callers`; sizes in bytes, `wait` in seconds."""

    callers: int
    calls: int
    request: int
    frames: int
    size: int
    wait: float


PROFILES: Final = {
    "team": Profile(20, 2, 768 * _KIB, 8, 128 * _KIB, 1.0),
    "burst": Profile(64, 2, 768 * _KIB, 8, 128 * _KIB, 1.0),
    "tokens": Profile(64, 1, 2 * _KIB, 2_000, 200, 0.0),
    "wide": Profile(170, 1, 16 * _KIB, 8, 1_000, 0.2),
}


@dataclass
class Call:
    """One call as its caller saw it: the bytes of its body with their chunks, and whether the last chunk came."""

    seconds: float
    status: int
    bytes: int
    ended: bool


def request_body(profile: Profile) -> bytes:
    """A Responses request of the profile's size: a long input, as transcripts have it."""
    body: dict[str, Any] = {
        "model": "bench",
        "stream": True,
        "instructions": f"wait={profile.wait} frames={profile.frames} size={profile.size}",
        "input": [],
    }
    text = "Whoever reads a long transcript parses many short texts. " * 16
    for _ in range(max(0, profile.request - 300) // (len(text) + 80)):
        body["input"].append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
    return json.dumps(body).encode()


async def one_call(url: str, key: str, body: bytes) -> Call:
    parts = urlsplit(url)
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 20)
    try:
        head = (
            f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\nauthorization: Bearer {key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        received = 0
        tail = b""
        while data := await reader.read(1 << 20):
            received += len(data)
            tail = (tail + data)[-len(_LAST_CHUNK) :]
        status = int(answer.split(b" ", 2)[1])
        return Call(time.perf_counter() - started, status, received, tail == _LAST_CHUNK)
    finally:
        writer.close()


async def run(url: str, key: str, profile: Profile) -> tuple[float, list[Call]]:
    """Every call of the profile, and the seconds that all of them took."""
    body = request_body(profile)

    async def caller() -> list[Call]:
        return [await one_call(url, key, body) for _ in range(profile.calls)]

    started = time.perf_counter()
    made = await asyncio.gather(*(caller() for _ in range(profile.callers)))
    return time.perf_counter() - started, [call for calls in made for call in calls]


def main() -> None:
    url, key, name = sys.argv[1:4]
    seconds, calls = asyncio.run(run(url, key, PROFILES[name]))
    sys.stdout.write(json.dumps({"seconds": seconds, "calls": [call.__dict__ for call in calls]}) + "\n")


if __name__ == "__main__":
    main()
