"""What the door reads of a request: that it is bounded, and which model it names."""

from typing import Final

from driver.door.codings import decoded
from driver.door.jsonscan import JsonRefused, JsonTooComplex, members, name_pattern, string_at
from driver.errors import DoorRefusal

# Some parsers take a member's name in whatever case.
_MODEL: Final = name_pattern("model", any_case=True)


def check(body: bytes | bytearray, coding: str, model: str) -> None:
    """Check the bounds of a model request and that it names `model`, once. Raises DoorRefusal."""
    data = decoded(body, coding)
    if b"\0" in data:
        # Valid UTF-8 JSON holds none; in UTF-16, which some parsers take unasked, we would read another text.
        raise DoorRefusal(400, "malformed_request", "the request is no JSON in UTF-8: it holds a NUL")
    try:
        named = [string_at(data, start) for start in members(data, _MODEL, 1)]
    except JsonTooComplex as error:
        raise DoorRefusal(413, "request_too_large", f"the request has {error}") from error
    except JsonRefused as error:
        raise DoorRefusal(400, "malformed_request", f"the request is no JSON: {error}") from error
    # Parsers differ in which of two equal members counts, so a second one is refused too.
    if named != [model]:
        raise DoorRefusal(403, "model_not_allowed", f"the request's model must be {model}")
