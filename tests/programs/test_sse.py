"""Server-sent events."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinds.programs.errors import FrameTooLarge
from kinds.programs.sse import Frame, FrameParser

STREAM = (
    "\ufeff: a comment\n\n"
    "data: one\n\n"
    "event: named\r\ndata: two\r\ndata:  lines\r\n\r\n"
    "id: 7\rdata:zwei ö\r\r"
    "event: without data\n\n"
    "retry: 5\n"
    "data\n\n"
    "data: unfinished\n"
).encode()
FRAMES = [
    Frame("message", b"one"),
    Frame("named", b"two\n lines"),
    Frame("message", "zwei ö".encode()),
    Frame("message", b""),
]


@settings(deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_any_split_gives_the_same_frames(cuts: list[int]) -> None:
    """Frames do not depend on how the bytes arrive; every line end counts; an unfinished one is none."""
    parser = FrameParser(1000)
    places = [0, *sorted(cuts), len(STREAM)]
    frames = [frame for a, b in pairwise(places) for frame in parser.feed(STREAM[a:b])]
    assert frames == FRAMES


def test_one_frame_is_bounded() -> None:
    """An event over its bound is refused before it is complete; many small ones are not."""
    parser = FrameParser(100)
    for _ in range(50):
        assert len(parser.feed(b"data: 0123456789\n\n: comment comment comment\n")) == 1
    with pytest.raises(FrameTooLarge, match="over 100 bytes"):
        parser.feed(b"data: " + b"x" * 100)


def test_many_lines_of_one_frame_are_bounded() -> None:
    """The bound is on the whole event, not on one line."""
    parser = FrameParser(100)
    with pytest.raises(FrameTooLarge):
        parser.feed(b"data: 0123456789\n" * 10)
