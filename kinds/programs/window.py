"""How full the model's context is, as far as that can be told before a call.

The provider's own count of the last call is the base, and what came since is added by its length.
"""

from typing import Final

# Code and prose in English come to 3.5 to 4 bytes a token, most other scripts to 3; so this counts too many.
BYTES_A_TOKEN: Final = 3
# A count of more tokens than bytes (the system prompt and the tools come on top), or of far too few, is none: some
# providers leave out what they had cached.
_AROUND_TOKENS: Final = 32_768
_MOST_BYTES_A_TOKEN: Final = 8

_ANSWER_TOKENS: Final = 16_384
_ANSWER_SHARE: Final = 0.25


class Window:
    """The context of one session's model: `tokens` of them, or None where nobody told.

    Kept free for the answer, the system prompt and the tools: 16,384 tokens, at most a quarter.
    """

    def __init__(self, tokens: int | None) -> None:
        self._limit = None if tokens is None else tokens - min(_ANSWER_TOKENS, int(tokens * _ANSWER_SHARE))
        self._bytes = 0
        self._counted = 0

    def counted(self, encoded: int, tokens: int) -> None:
        """The provider counted so many tokens in a call whose transcript had so many bytes; 0 tells nothing."""
        if tokens > 0 and encoded > 0:
            self._bytes = encoded
            self._counted = min(max(tokens, encoded // _MOST_BYTES_A_TOKEN), encoded + _AROUND_TOKENS)

    def tokens(self, encoded: int) -> int:
        """What a transcript of so many bytes may come to; rather too many than too few."""
        if not self._counted:
            return encoded // BYTES_A_TOKEN
        rate = self._counted / self._bytes
        if encoded < self._bytes:
            return int(encoded * rate)
        return self._counted + int((encoded - self._bytes) * max(min(rate, 1.0), 1 / BYTES_A_TOKEN))

    def share(self, encoded: int) -> float:
        """How much of the context a transcript of so many bytes takes; over 1 it is too long."""
        return 0.0 if self._limit is None else self.tokens(encoded) / self._limit
