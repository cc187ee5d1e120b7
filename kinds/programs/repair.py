"""JSON as models write it: as a string inside JSON, now and then with one bracket too many or too few.

A repair adds or removes one of the closing brackets at the end, and touches nothing before them. What is
open there decides which brackets can close it, so no such text has two meanings.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

_CLOSING: Final = "]} \t\r\n"
_LONGEST_RUN: Final = 64


class NotUnderstood(Exception):
    """The text is no JSON, nor one bracket away from it."""


def loads(text: str, wanted: Callable[[Any], bool]) -> Any:
    """The JSON value in `text` that is `wanted`. Raises NotUnderstood."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _repaired(text, wanted)
    if not wanted(value):
        raise NotUnderstood("it is not of the shape that was asked for")
    return value


def _repaired(text: str, wanted: Callable[[Any], bool]) -> Any:
    for candidate in _candidates(text.rstrip()):
        try:
            value = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if wanted(value):
            return value
    raise NotUnderstood("it is not JSON")


def _candidates(text: str) -> Iterator[str]:
    start = len(text.rstrip(_CLOSING))
    if len(text) - start > _LONGEST_RUN:
        return
    for place in range(start, len(text) + 1):
        for bracket in "]}":
            yield text[:place] + bracket + text[place:]
        if place < len(text):
            yield text[:place] + text[place + 1 :]
