"""What the door reads of a request: that it is bounded, and which model it names."""

import zlib
from typing import Final

from driver.door.jsonscan import JsonRefused, JsonTooComplex, members, name_pattern, string_at
from driver.errors import DoorRefusal

_MIB: Final = 1024 * 1024

REQUEST_BYTES: Final = 16 * _MIB
"""The longest request body, as it is sent and after decoding."""

_MODEL: Final = name_pattern("model")
_GZIP: Final = 16 + zlib.MAX_WBITS
_IDENTITY: Final = ("", "identity")
_GZIPPED: Final = ("gzip", "x-gzip")


def too_large() -> DoorRefusal:
    """The refusal for a request body past its bound."""
    return DoorRefusal(413, "request_too_large", f"the request is longer than {REQUEST_BYTES:,} bytes")


def decoded_bytes(size: int, encoding: str) -> int:
    """How many bytes checking a body of `size` bytes may take on top. Raises DoorRefusal for an unknown coding."""
    if encoding in _IDENTITY:
        return 0
    if encoding in _GZIPPED:
        return REQUEST_BYTES
    raise DoorRefusal(415, "encoding_not_supported", "the content encoding of a request must be identity or gzip")


def check(body: bytes | bytearray, encoding: str, model: str) -> None:
    """Check the bounds of a model request and that it names `model`, once. Raises DoorRefusal."""
    data = body if encoding in _IDENTITY else _gunzip(body)
    try:
        named = [string_at(data, start) for start in members(data, _MODEL, 1)]
    except JsonTooComplex as error:
        raise DoorRefusal(413, "request_too_large", f"the request has {error}") from error
    except JsonRefused as error:
        raise DoorRefusal(400, "malformed_request", f"the request is no JSON: {error}") from error
    # Parsers differ in which of two equal members counts, so a second one is refused too.
    if named != [model]:
        raise DoorRefusal(403, "model_not_allowed", f"the request's model must be {model}")


def _gunzip(body: bytes | bytearray) -> bytes:
    decoder = zlib.decompressobj(_GZIP)
    try:
        data = decoder.decompress(body, REQUEST_BYTES)
    except zlib.error as error:
        raise DoorRefusal(400, "malformed_request", f"the request is no gzip data: {error}") from error
    if decoder.unconsumed_tail:
        raise too_large()
    if not decoder.eof or decoder.unused_data:
        raise DoorRefusal(400, "malformed_request", "the request is not one complete gzip member")
    return data
