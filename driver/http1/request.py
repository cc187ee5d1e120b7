"""The head of a request."""

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

_FRAMING = frozenset({"content-length", "transfer-encoding"})


@dataclass(frozen=True)
class Request:
    """The head of a request. Header names are lower case; a repeated one keeps its order.

    Raises ValueError for a target that is no URL, and for a body whose length is told in two ways: whoever
    comes next might read it in the other one (RFC 9112, section 6.1).
    """

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    path: str = field(init=False)
    query: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.target)
        object.__setattr__(self, "path", unquote(parts.path))
        object.__setattr__(self, "query", dict(parse_qsl(parts.query)))
        if {key for key, _ in self.headers} >= _FRAMING:
            raise ValueError("a request has either a content-length or a transfer-encoding")

    def header(self, name: str) -> str | None:
        """The first value of a header, or None. `name` is lower case."""
        return next((value for key, value in self.headers if key == name), None)

    def all(self, name: str) -> list[str]:
        """Every value of a header, in order. `name` is lower case."""
        return [value for key, value in self.headers if key == name]

    @property
    def has_body(self) -> bool:
        """Whether a body follows the head; it may still be empty."""
        return any(key in _FRAMING for key, _ in self.headers)
