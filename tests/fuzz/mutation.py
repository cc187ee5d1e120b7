"""Changes an archive as somebody would who knows the format.

Bytes that are changed blindly hardly ever get past the checksum of a header; here what is changed is mostly made
consistent again, so that the rules behind it are reached.
"""

import random
from collections.abc import Callable

from tests.driver.workspace.archives import END, block, directory, file, gnu_name, padded, pax, record
from tests.driver.workspace.values import KEYWORDS, KINDS, MAGICS, MODES, NAMES, SIZES, VALUES

Piece = tuple[bytes, bytes]
"""A header block, and the data after it, padded."""


def pieces(archive: bytes) -> list[Piece]:
    """An archive cut at its headers; what follows its last one is dropped."""
    found: list[Piece] = []
    at = 0
    while any(archive[at : at + 512]):
        raw = archive[at : at + 512].ljust(512, b"\0")
        digits = raw[124:135].strip(b" \0")
        size = int(digits, 8) if digits and not digits.strip(b"01234567") else 0
        length = size + -size % 512
        found.append((raw, archive[at + 512 : at + 512 + length]))
        at += 512 + length
    return found


def mended(raw: bytes) -> bytes:
    """A header block with the checksum that it has to have."""
    return raw[:148] + b"%06o\0 " % (sum(raw[:148]) + 256 + sum(raw[156:])) + raw[156:]


def mutated(archive: bytes, most: int, seed: int, blindly: Callable[[bytes, int], bytes]) -> bytes:
    """Another archive of at most `most` bytes; `blindly` changes bytes without knowing what they are."""
    rng = random.Random(seed)
    if rng.random() < 0.1:
        return bytes(blindly(archive, most))[:most]
    parts = pieces(archive)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _change(rng, parts, blindly)
    whole = b"".join((mended(raw) if rng.random() < 0.98 else raw) + data for raw, data in parts)
    end = rng.choice((END,) * 12 + (b"", bytes(512), bytes(2048), bytes(1100), END + b"\1" + bytes(511)))
    return (whole[: most - len(end)] + end)[:most]


def _change(rng: random.Random, parts: list[Piece], blindly: Callable[[bytes, int], bytes]) -> None:
    at = rng.randrange(len(parts) + 1)
    action = rng.random()
    if not parts or at == len(parts) or action < 0.25:
        parts[at:at] = pieces(_entry(rng))
    elif action < 0.35:
        del parts[at]
    elif action < 0.45:
        parts.insert(rng.randrange(len(parts) + 1), parts[at])
    elif action < 0.55:
        other = rng.randrange(len(parts))
        parts[at], parts[other] = parts[other], parts[at]
    elif action < 0.85:
        parts[at] = _with_field(rng, *parts[at])
    elif action < 0.92:
        raw, data = parts[at]
        changed = bytes(blindly(raw, 512))[:512]
        parts[at] = changed.ljust(512, b"\0"), data
    else:
        raw, data = parts[at]
        parts[at] = raw, bytes(blindly(data, max(len(data), 64)))


def _with_field(rng: random.Random, raw: bytes, data: bytes) -> Piece:
    """One field with another value, in its place."""
    start, field = rng.choice(
        (
            (0, rng.choice(NAMES)[:100].ljust(100, b"\0")),
            (100, rng.choice(MODES)),
            (124, rng.choice(SIZES)),
            (124, b"%011o\0" % len(data)),
            (156, rng.choice(KINDS)),
            (157, rng.choice((b"/etc/passwd", b"..", b"a")).ljust(100, b"\0")),
            (257, rng.choice(MAGICS)),
            (345, rng.choice(NAMES)[:155].ljust(155, b"\0")),
        )
    )
    return raw[:start] + field + raw[start + len(field) :], data


def _entry(rng: random.Random) -> bytes:
    """A small entry, mostly a good one, with what may stand before it."""
    name = rng.choice(NAMES)
    data = rng.choice((b"", b"abc", b"x" * 512, b"y" * 700))
    records = [record(rng.choice(KEYWORDS), rng.choice(VALUES + NAMES)) for _ in range(rng.randrange(3))]
    header = block(name[:100], rng.choice(KINDS), size=len(data), magic=rng.choice(MAGICS[:2])) + padded(data)
    return rng.choice(
        (
            file(name[:100], data),
            file(name[:100], data, mode=rng.choice(MODES)),
            directory(name[:100]),
            header,
            pax(record(b"path", name), *records) + file(b"x", data),
            pax(record(b"size", b"%d" % len(data)), *records) + block(b"s") + padded(data),
            pax(*records, kind=rng.choice((b"x", b"g"))),
            gnu_name(name) + block(b"y", rng.choice((b"0", b"5")), magic=b"ustar  \0"),
            block(b"b", size_field=b"\x80" + len(data).to_bytes(11, "big")) + padded(data),
            block(b"p", prefix=name[:155]),
        )
    )
