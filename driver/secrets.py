"""Keeps secrets out of whatever is written.

Where a secret may be split over two pieces of text, the caller holds back what `may_begin` one and masks
the joined text (driver.process.output does).
"""

import base64
import json
import string

_MASK = "***"
_UNRESERVED = (string.ascii_letters + string.digits + "-._~").encode()  # RFC 3986, 2.3


class Secrets:
    """The secrets that must not appear in any log line.

    Each is masked as it is, JSON-escaped, in hexadecimal digits, URL-encoded (RFC 3986, 2.1), and in base64 (the part
    that does not depend on its neighbours).
    """

    def __init__(self, *secrets: str) -> None:
        self._forms: dict[str, list[str]] = {}
        self._ordered: list[str] = []
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Mask `secret` from now on. Secrets under 8 characters would mask common text: ValueError."""
        if len(secret) < 8:
            raise ValueError("a secret to be masked has at least 8 characters")
        self._forms[secret] = _forms_of(secret)
        self._reorder()

    def discard(self, secret: str) -> None:
        """Stop masking `secret`, once nothing of it can be written any more."""
        self._forms.pop(secret, None)
        self._reorder()

    def _reorder(self) -> None:
        self._ordered = sorted({form for forms in self._forms.values() for form in forms}, key=len, reverse=True)

    @property
    def longest(self) -> int:
        """Length in characters of the longest text that is masked."""
        return len(self._ordered[0]) if self._ordered else 0

    def mask(self, text: str) -> str:
        """`text` with each secret replaced by `***`."""
        for form in self._ordered:
            if form in text:
                text = text.replace(form, _MASK)
        return text

    def redact(self, text: str, fill: str) -> str:
        """`text` with each character of a secret replaced by `fill`, one for one, so that offsets still hold."""
        for form in self._ordered:
            if form in text:
                text = text.replace(form, fill * len(form))
        return text

    def may_begin(self, text: str) -> int:
        """How many characters at the end of `text` may be the first part of a text that is masked."""
        tail = text[-max(self.longest - 1, 0) :] if self.longest > 1 else ""
        return max((_overlap(tail, form) for form in self._ordered), default=0)


def _overlap(tail: str, form: str) -> int:
    """The length of the longest end of `tail` that is a proper beginning of `form`."""
    at = tail.find(form[0], max(len(tail) - len(form) + 1, 0))
    while at >= 0:
        if form.startswith(tail[at:]):
            return len(tail) - at
        at = tail.find(form[0], at + 1)
    return 0


def _url_encoded(data: bytes, plain: bytes) -> str:
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in data)


def _forms_of(secret: str) -> list[str]:
    data = secret.encode()
    forms = {secret, json.dumps(secret)[1:-1], data.hex(), data.hex().upper(), _url_encoded(data, _UNRESERVED)}
    forms.add(_url_encoded(data, _UNRESERVED + b"/"))
    # A secret inside base64 looks different for each position modulo 3; the characters that also
    # encode a neighbour's bits are left out.
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + data).decode().rstrip("=")
        first = -(-shift * 8 // 6)
        last = (shift + len(data)) * 8 // 6
        stable = encoded[first:last]
        forms |= {stable, stable.replace("+", "-").replace("/", "_")}
    return [form for form in forms if len(form) >= 8]
