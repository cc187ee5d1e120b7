"""What the door reads of a request: that it is bounded, and which model it names."""

from collections.abc import Iterator
from typing import Final

from driver.door.jsonscan import JsonRefused, JsonTooComplex, Members, name_pattern, string_at
from driver.errors import DoorRefusal

# Some parsers take a member's name in whatever case.
_MODEL: Final = name_pattern("model", any_case=True)


def checks(data: bytes | bytearray, model: str) -> Iterator[None]:
    """Check the bounds of a decoded model request and that it names `model`, once, in short steps.

    Raises DoorRefusal.
    """
    if b"\0" in data:
        # Valid UTF-8 JSON holds none; in UTF-16, which some parsers take unasked, we would read another text.
        raise DoorRefusal(400, "malformed_request", "the request is no JSON in UTF-8: it holds a NUL")
    named: list[str | None] = []
    try:
        for starts in Members(data, _MODEL, 1).slices():
            named.extend(string_at(data, start) for start in starts)
            yield
    except JsonTooComplex as error:
        raise DoorRefusal(413, "request_too_large", f"the request has {error}") from error
    except JsonRefused as error:
        raise DoorRefusal(400, "malformed_request", f"the request is no JSON: {error}") from error
    # Parsers differ in which of two equal members counts, so a second one is refused too.
    if named != [model]:
        raise DoorRefusal(403, "model_not_allowed", f"the request's model must be {model}")
