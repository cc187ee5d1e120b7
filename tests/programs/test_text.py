"""Text of unknown origin, line by line."""

from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinds.programs.text import flat, lines, one_line, skip_lines

MANY = 1 << 40


@given(st.lists(st.sampled_from([b"\n", b"a", b"\r\n", b"x" * 70_000]), max_size=12), st.integers(0, 9))
def test_skipping_is_reading_faster(parts: list[bytes], count: int) -> None:
    """Past the skipped lines the same lines come with the same numbers, and the number of all is known at the end."""
    data = b"".join(parts)
    every = list(lines(BytesIO(data), 100, MANY))
    file = BytesIO(data)
    passed, taken = skip_lines(file, count, MANY)
    assert passed == min(count, len(every))
    assert file.tell() == taken
    assert list(lines(file, 100, MANY, number=passed + 1)) == every[passed:]


def test_skipping_is_bounded() -> None:
    """No more bytes are read than may be."""
    file = BytesIO(b"a\n" * 100_000)
    assert skip_lines(file, 10**9, 70_000) == (35_000, 70_000)
    assert file.tell() == 70_000


@pytest.mark.parametrize("separator", ["\r", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029"])
def test_only_a_line_feed_ends_a_line(separator: str) -> None:
    """What else could be taken for the end of a line is shown as a blank."""
    assert flat(f"a{separator}b") == "a b"
    assert [text for _, text, _ in lines(BytesIO(f"a{separator}b\r\nc".encode()), 100, MANY)] == ["a b", "c"]


def test_one_line_is_one_line() -> None:
    """Control characters, separators and halves of pairs are blanks, and the length is bounded."""
    assert one_line("a\x1b[31m\n\ud800b", 100) == "a [31m  b"
    assert one_line("abcdef", 4) == "abc…"
