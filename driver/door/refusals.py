"""The door's own answers, in the shape that clients of each wire understand.

Each also has the members of a problem document (RFC 9457) that the gateway's refusals have, so that a
program reads `code` in one place.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from driver.errors import DoorRefusal
from driver.gateway.wire import ModelWire

_OPENAI_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def refusal_answer(refusal: DoorRefusal, wire: ModelWire | None) -> tuple[list[tuple[str, str]], bytes]:
    """Headers and body of a refusal."""
    problem = {"status": refusal.status, "code": refusal.code, "detail": refusal.detail}
    body = {**_shape(refusal, wire), **problem}
    kind = "application/problem+json" if wire is None else "application/json"
    headers = [("content-type", kind)]
    if refusal.retry_after is not None:
        headers.append(("retry-after", str(refusal.retry_after)))
    elif refusal.status < 500:
        # Both vendors' clients try a 409 again unless they are told not to.
        headers.append(("x-should-retry", "false"))
    return headers, json.dumps(body).encode()


def _shape(refusal: DoorRefusal, wire: ModelWire | None) -> dict[str, Any]:
    fallback = "invalid_request_error" if refusal.status < 500 else "api_error"
    if wire is None:
        return {"type": "about:blank", "title": refusal.code}
    if wire == "messages":
        kind = _ANTHROPIC_TYPES.get(refusal.status, fallback)
        return {"type": "error", "error": {"type": kind, "message": refusal.detail, "code": refusal.code}}
    kind = _OPENAI_TYPES.get(refusal.status, fallback)
    return {"error": {"message": refusal.detail, "type": kind, "param": None, "code": refusal.code}}
