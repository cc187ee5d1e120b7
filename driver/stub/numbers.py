"""Whole numbers as callers write them in headers."""

from typing import Final

_MOST_DIGITS: Final = 18  # enough for a size; Python refuses to convert more than some thousands


def whole_number(text: str | None) -> int | None:
    """The number that `text` is in ASCII digits, or None when it is none or too long to be meant."""
    if not text or not (text.isascii() and text.isdigit()) or len(text) > _MOST_DIGITS:
        return None
    return int(text)
