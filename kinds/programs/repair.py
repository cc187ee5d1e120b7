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


def items(arguments: str, name: str, most: int) -> list[Any]:
    """What a tool call brings under `name`: a list, or one object alone; as JSON, or as a string that holds JSON.

    An item that is a string of JSON is what it holds. Raises NotUnderstood, also for more than `most` items.
    """
    try:
        given = loads(arguments, lambda value: isinstance(value, dict) and name in value)[name]
        if isinstance(given, str):
            given = loads(given, lambda value: isinstance(value, list | dict))
    except NotUnderstood as error:
        raise NotUnderstood(f"`{name}` is not understood: {error}") from error
    listed = [given] if isinstance(given, dict) else given
    if not isinstance(listed, list):
        raise NotUnderstood(f"`{name}` must be a list of objects")
    if len(listed) > most:
        raise NotUnderstood(f"`{name}` holds {len(listed)} items; report at most {most} at once")
    return [_item(item) for item in listed]


def _item(item: Any) -> Any:
    """The item, or what it holds when it is a string of JSON; one that is not understood stays as it is."""
    if not isinstance(item, str):
        return item
    try:
        return loads(item, lambda value: isinstance(value, dict))
    except NotUnderstood:
        return item


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
