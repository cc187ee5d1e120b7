"""A fake provider in a process of its own: as fast as asyncio allows, with room for 32 answers at one time.

`python -m bench.provider` prints its port. A request's body tells it somewhere what to answer, as in
`wait=1.0 frames=8 size=131072`. Beyond its room calls wait, first in first out, as they would at a provider: so a
client that comes straight and one that comes through a proxy wait for the same capacity.
"""

import asyncio
import re
import sys
from typing import Final

ROOM: Final = 32
_WANTED: Final = re.compile(rb"wait=([\d.]+) frames=(\d+) size=(\d+)")
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-store\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_TERMINAL: Final = (
    b"event: response.completed\ndata: "
    b'{"type":"response.completed","sequence_number":999999,"response":{"id":"resp_1","object":"response","created_at":1,'
    b'"status":"completed","model":"bench","output":[],"parallel_tool_calls":true,"tool_choice":"auto","tools":[],'
    b'"usage":{"input_tokens":900,"input_tokens_details":{"cached_tokens":0},"output_tokens":100,'
    b'"output_tokens_details":{"reasoning_tokens":0},"total_tokens":1000}}}\n\n'
)


def delta_frame(size: int) -> bytes:
    """An output text delta that takes `size` bytes as an event."""
    head = (
        b"event: response.output_text.delta\ndata: "
        b'{"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"content_index":0,"logprobs":[],'
        b'"sequence_number":7,"delta":"'
    )
    tail = b'"}\n\n'
    return head + b"x" * max(1, size - len(head) - len(tail)) + tail


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, room: asyncio.Semaphore) -> None:
    """Answer the requests of one connection, in order."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            wait, frames, size = await _wanted(reader, head)
            async with room:
                await asyncio.sleep(wait)
                writer.write(_HEAD)
                frame = chunk(delta_frame(size))
                for _ in range(frames):
                    writer.write(frame)
                    await writer.drain()
                    await asyncio.sleep(0)  # else the kernel would get many small frames as one
                writer.write(chunk(_TERMINAL) + b"0\r\n\r\n")
                await writer.drain()
            if b"connection: close" in head.lower():
                return
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    finally:
        writer.close()


async def _wanted(reader: asyncio.StreamReader, head: bytes) -> tuple[float, int, int]:
    """Seconds to wait, frames, and bytes of a frame."""
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        body = bytearray()
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        _, _, rest = lower.partition(b"content-length:")
        body = bytearray(await reader.readexactly(int(rest.split(b"\r\n", 1)[0] or b"0")))
    found = _WANTED.search(body)
    return (float(found[1]), int(found[2]), int(found[3])) if found else (0.0, 1, 200)


async def main() -> None:
    room = asyncio.Semaphore(ROOM)
    server = await asyncio.start_server(lambda r, w: serve(r, w, room), "127.0.0.1", 0, limit=1 << 20)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
