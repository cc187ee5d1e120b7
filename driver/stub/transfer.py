"""The workspace archive over HTTP: whole, or from where a transfer broke off (RFC 9110, 14.2 and 13.1.5)."""

import hashlib
import re
from typing import Final

import anyio

from driver.http1 import Request
from driver.stub.answers import Answer, Body, Headers
from driver.stub.archive import Archive, read_slices
from driver.stub.errors import Rejected
from driver.stub.faults import Strikes
from driver.stub.results import digest_field

_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")

WRONG_DIGEST: Final = digest_field(hashlib.sha256(b"another archive").digest())
"""What the fault `wrong_digest` says in place of the digest."""


def archive_answer(archive: Archive, request: Request, strikes: Strikes) -> Answer:
    """The answer to a GET of the archive. Rejected (416) for a range that is not in it."""
    chosen = asked_range(request, archive)
    digest = WRONG_DIGEST if "wrong_digest" in strikes else archive.digest
    headers: Headers = (
        ("content-type", "application/x-tar"),
        ("etag", archive.etag),
        ("repr-digest", digest),
        ("accept-ranges", "bytes"),
    )
    if chosen is None:
        return Answer(200, headers, stream(archive, 0, archive.size - 1), archive.size)
    first, last = chosen
    headers = (*headers, ("content-range", f"bytes {first}-{last}/{archive.size}"))
    return Answer(206, headers, stream(archive, first, last), last - first + 1)


def asked_range(request: Request, archive: Archive) -> tuple[int, int] | None:
    """First and last byte of the one range asked for, or None for the whole.

    A range that cannot be read, several ranges, and a range of another archive (If-Range) are ignored.
    """
    asked, condition = request.header("range"), request.header("if-range")
    match = _RANGE.fullmatch(asked or "")
    if match is None or match[0] == "bytes=-" or (condition is not None and condition != archive.etag):
        return None
    end = archive.size - 1
    if not match[1]:
        first, last = max(archive.size - int(match[2]), 0), end
    else:
        first, last = int(match[1]), min(int(match[2] or end), end)
        if match[2] and int(match[2]) < first:
            return None
    if first > end:
        raise Rejected(
            416,
            "range_not_satisfiable",
            "the range is not in it",
            headers=(("content-range", f"bytes */{archive.size}"),),
        )
    return first, last


async def stream(archive: Archive, first: int, last: int) -> Body:
    """The bytes of the archive, read in a worker thread."""
    slices = read_slices(archive, first, last)
    try:
        while data := await anyio.to_thread.run_sync(next, slices, b""):
            yield data
    finally:
        slices.close()
