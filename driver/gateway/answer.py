"""A whole answer of the gateway: its bounds, and what can be read out of it.

The first pull needs this before most of the driver is there (driver.loading), so the messages are imported where they
are used; by then they are there.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from driver import __version__
from driver.errors import ContractError, GatewayError, GatewayUnavailable
from driver.gateway.retry import error_for

if TYPE_CHECKING:
    from driver.gateway.wire import Message

USER_AGENT: Final = f"agent-sandbox-driver/{__version__}"

_KIB = 1024
# What is parsed in one go holds up the event loop: 4 MiB of text for some 20 ms.
ANSWER_BYTES: Final = 4 * 1024 * _KIB
PROBLEM_BYTES: Final = 64 * _KIB
ANSWER_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 10.0

M = TypeVar("M", bound="Message")


@dataclass(frozen=True)
class Answer:
    """A whole answer. Header names are looked up in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def parse(self, model: type[M], call: str) -> M:
        """The JSON message of a 200. Raises ContractError naming the field that is missing or wrong.

        What is no JSON was not written by the gateway, but by something before it, or was cut: GatewayUnavailable.
        """
        from pydantic import ValidationError

        if self.status != 200:
            raise ContractError(f"{call}: answered {self.status} where 200 was due")
        try:
            return model.model_validate_json(self.body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            if first["type"] == "json_invalid":
                raise GatewayUnavailable(f"{call}: answered 200 with {len(self.body):,} bytes of no JSON") from error
            field = ".".join(str(part) for part in first["loc"]) or "the body"
            raise ContractError(f"{call}: {field}: {first['msg']}") from error

    def refusal(self, call: str) -> GatewayError:
        """The error that a refusing answer means."""
        return error_for(call, self.status, self.headers, problem_code(self.body))


class BodyBuffer:
    """Collects the body of an answer up to its bound. A problem document that is too large is none."""

    def __init__(self, call: str, *, is_success: bool) -> None:
        self._call = call
        self._is_success = is_success
        self._limit = ANSWER_BYTES if is_success else PROBLEM_BYTES
        self._body = bytearray()

    def add(self, piece: bytes) -> bool:
        """Whether more is wanted. Raises ContractError for an answer past the bound."""
        self._body += piece
        if len(self._body) <= self._limit:
            return True
        if self._is_success:
            raise ContractError(f"{self._call}: the answer is larger than {self._limit:,} bytes")
        self._body.clear()
        return False

    def body(self) -> bytes:
        """What was collected."""
        return bytes(self._body)


def problem_code(body: bytes) -> str | None:
    """The `code` of a problem document, or None for a body that is none: the status decides then."""
    from pydantic import ValidationError

    from driver.gateway.wire import Problem

    try:
        return Problem.model_validate_json(body).code
    except ValidationError:
        return None


def tls_context(gateway_url: str, extra_ca: Path | None) -> ssl.SSLContext | bool:
    """What the gateway is verified with: the system's store and the extra CA, or nothing for plain http.

    Raises OSError or ssl.SSLError when the CA file cannot be loaded.
    """
    if not gateway_url.lower().startswith("https:"):
        return False
    context = ssl.create_default_context()
    if extra_ca is not None:
        context.load_verify_locations(cafile=extra_ca)
    return context
