"""Which headers pass the door, in both directions.

Hop-by-hop headers, and those that `Connection` names, concern one connection only (RFC 9110, section 7.6.1).
"""

from collections.abc import Iterable
from typing import Final

Header = tuple[str, str]

_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# What the upstream call sets itself, and what is nobody's business upstream.
_OF_THE_DOOR: Final = frozenset(
    {
        "accept-encoding",
        "authorization",
        "content-length",
        "cookie",
        "expect",
        "host",
        "user-agent",
        "x-api-key",
    }
)
_NOT_FOR_PROGRAMS: Final = frozenset({"set-cookie"})
_CLAIM: Final = "x-agent-"


def to_gateway(headers: Iterable[Header]) -> list[Header]:
    """The program's headers that go on to the gateway. Names are lower case."""
    return _filtered(list(headers), _OF_THE_DOOR)


def to_program(headers: Iterable[Header]) -> list[Header]:
    """The gateway's headers that go on to the program, its content-length included. Names are lower case.

    A content-length beside a transfer-encoding means nothing (RFC 9112, section 6.3).
    """
    given = list(headers)
    is_chunked = any(key == "transfer-encoding" for key, _ in given)
    return _filtered(given, _NOT_FOR_PROGRAMS | {"content-length"} if is_chunked else _NOT_FOR_PROGRAMS)


def _filtered(headers: list[Header], dropped: frozenset[str]) -> list[Header]:
    named = {
        name.strip().lower()
        for key, value in headers
        if key in ("connection", "proxy-connection")
        for name in value.split(",")
    }
    return [
        (key, value)
        for key, value in headers
        if key not in _HOP_BY_HOP and key not in dropped and key not in named and not key.startswith(_CLAIM)
    ]
