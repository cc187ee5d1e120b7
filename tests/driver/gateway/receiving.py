"""Takes a transfer of an archive as the workspace does: by a buffer, in a worker thread."""

from collections.abc import AsyncIterator

from anyio import from_thread, to_thread

from driver.gateway.archive import ArchiveStream

_BUFFER_BYTES = 2 << 20


async def pieces_of(stream: ArchiveStream) -> AsyncIterator[bytes]:
    """What comes, as it comes; raises what the transfer raises."""
    buffer = bytearray(_BUFFER_BYTES)
    while size := await to_thread.run_sync(stream.fill, memoryview(buffer), from_thread.check_cancelled):
        yield bytes(buffer[:size])


async def all_of(stream: ArchiveStream) -> bytes:
    """Everything that comes."""
    return b"".join([piece async for piece in pieces_of(stream)])
