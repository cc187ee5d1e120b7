"""Content codings of request bodies: decoded for the door's own look, within a bound, and passed on as they came."""

import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from driver.errors import DoorRefusal

_MIB: Final = 1024 * 1024

REQUEST_BYTES: Final = 16 * _MIB
"""The longest request body, as it is sent and after decoding."""

_GZIP: Final = 16 + zlib.MAX_WBITS
# The largest window that a body in this coding may ask for: 8 MiB (RFC 9659, section 3).
_ZSTD_WINDOW_LOG: Final = 23
IDENTITY: Final = "identity"


class _Decoder(Protocol):
    """What zlib and zstd agree in."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: Any, max_length: int, /) -> bytes: ...


def too_large() -> DoorRefusal:
    """The refusal for a request body past its bound."""
    return DoorRefusal(413, "request_too_large", f"the request is longer than {REQUEST_BYTES:,} bytes")


def coding_of(values: Iterable[str]) -> str:
    """The one coding that a request's `Content-Encoding` headers name. Raises DoorRefusal for any other."""
    named = [name.strip().lower() for value in values for name in value.split(",") if name.strip()]
    coding = named[0] if len(named) == 1 else ",".join(named) or IDENTITY
    if coding != IDENTITY and coding not in _DECODERS:
        known = ", ".join(sorted({IDENTITY, *_DECODERS}))
        raise DoorRefusal(415, "encoding_not_supported", f"the content encoding of a request must be one of {known}")
    return coding


def decoding_bytes(coding: str) -> int:
    """How many bytes decoding may take on top of the body itself."""
    if coding == IDENTITY:
        return 0
    return REQUEST_BYTES + ((1 << _ZSTD_WINDOW_LOG) if coding == "zstd" else 0)


def decoded(body: bytes | bytearray, coding: str) -> bytes | bytearray:
    """The body without its coding. Raises DoorRefusal: past the bound, or not exactly one whole stream."""
    if coding == IDENTITY:
        return body
    decoder = _DECODERS[coding]()
    try:
        data = decoder.decompress(body, REQUEST_BYTES + 1)
    except Exception as error:
        raise DoorRefusal(400, "malformed_request", f"the request is no {coding} data: {error}") from error
    if len(data) > REQUEST_BYTES:
        raise too_large()
    # Receivers differ in what they make of a second stream behind the first.
    if not decoder.eof or decoder.unused_data:
        raise DoorRefusal(400, "malformed_request", f"the request is not one whole {coding} stream")
    return data


def _gzip() -> _Decoder:
    return zlib.decompressobj(_GZIP)


def _zstd() -> _Decoder:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})


_DECODERS: Final[Mapping[str, Callable[[], _Decoder]]] = {"gzip": _gzip, "x-gzip": _gzip, "zstd": _zstd}
