"""Framing: byte for byte, as early as possible, and bounded."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.door.frames import FrameReader, event_data, event_name
from driver.errors import DoorRefusal

lines = st.sampled_from([b"data: a", b"event: x", b": c", b"id", b""])
ends = st.sampled_from([b"\n", b"\r\n", b"\r"])


def feed_in(stream: bytes, cuts: list[int]) -> tuple[list[bytes], bytes]:
    reader = FrameReader()
    frames: list[bytes] = []
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    for start, end in pairwise(places):
        frames += reader.feed(stream[start:end])
    return frames, b"".join(reader.rest())


@given(st.lists(st.tuples(lines, ends), max_size=20), st.lists(st.integers(0, 200), max_size=20))
def test_stream_passes_unchanged(parts: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    """However a stream arrives, its frames and its rest are the stream."""
    stream = b"".join(line + end for line, end in parts)
    frames, rest = feed_in(stream, cuts)
    assert b"".join(frames) + rest == stream


@given(st.lists(st.tuples(st.integers(1, 3), ends), min_size=1, max_size=8), st.lists(st.integers(0, 300), max_size=20))
def test_each_event_is_one_frame(events: list[tuple[int, bytes]], cuts: list[int]) -> None:
    """Events with any line ends are cut at their blank lines, however they arrive, and lose no field."""
    stream = b"".join((b"data: x" + end) * count + end for count, end in events)
    frames, rest = feed_in(stream, cuts)
    assert rest in (b"", b"\n")
    assert [event_data(frame) for frame in frames] == [b"\n".join([b"x"] * count) for count, _ in events]


@pytest.mark.parametrize("blank", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n", b"\r\n\n", b"\n\r", b"\r\r\n", b"\r\n\r"])
def test_every_blank_line_ends_a_frame(blank: bytes) -> None:
    """A frame is given as soon as its blank line is there, also where a \\n could still follow."""
    assert FrameReader().feed(b"data: a" + blank) == [b"data: a" + blank]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_one_line_end_ends_no_frame(end: bytes) -> None:
    """A single line end of any kind is no blank line."""
    reader = FrameReader()
    assert reader.feed(b"data: a" + end) == []
    assert reader.held == 7 + len(end)
    assert reader.rest() == [b"data: a" + end]


def test_late_line_feed_begins_the_next_frame() -> None:
    """The \\n of a \\r that ended a frame comes with the next one, and is an empty line there."""
    reader = FrameReader()
    assert reader.feed(b"data: a\r\n\r") == [b"data: a\r\n\r"]
    assert reader.feed(b"\ndata: b\r\n\r\n") == [b"\ndata: b\r\n\r\n"]
    assert event_data(b"\ndata: b\r\n\r\n") == b"b"


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize(("size", "fits"), [(99, True), (100, True), (101, False)])
def test_frame_limit_is_exact(size: int, fits: bool, step: int) -> None:
    """A frame of the limit passes; one byte more is refused, whole or in pieces."""
    frame = b"x" * (size - 2) + b"\n\n"
    reader = FrameReader(frame_limit=100)

    def feed() -> list[bytes]:
        return [made for start in range(0, size, step) for made in reader.feed(frame[start : start + step])]

    if fits:
        assert feed() == [frame]
    else:
        with pytest.raises(DoorRefusal, match="longer than 100 bytes") as refused:
            feed()
        assert (refused.value.status, refused.value.code) == (502, "frame_too_large")


def test_frame_without_end_is_refused_at_the_limit() -> None:
    """No more than the limit is held of a frame that never ends."""
    reader = FrameReader(frame_limit=100)
    reader.feed(b"x" * 100)
    with pytest.raises(DoorRefusal):
        reader.feed(b"x")


@pytest.mark.parametrize(("frames", "fits"), [(9, True), (10, True), (11, False)])
def test_answer_limit_is_exact(frames: int, fits: bool) -> None:
    """All frames together are bounded too."""
    reader = FrameReader(answer_limit=100)

    def feed() -> None:
        for _ in range(frames):
            reader.feed(b"data: xx\n\n")

    if fits:
        feed()
    else:
        with pytest.raises(DoorRefusal) as refused:
            feed()
        assert (refused.value.status, refused.value.code) == (502, "answer_too_large")


@pytest.mark.parametrize(
    ("frame", "name", "data"),
    [
        (b"event: a.b\ndata: {}\n\n", b"a.b", b"{}"),
        (b"event:a\r\ndata:{}\r\n\r\n", b"a", b"{}"),
        (b"data: {}\n\n", b"", b"{}"),
        (b"event: a\rdata: 1\rdata: 2\r\r", b"a", b"1\n2"),
        (b": comment\n\n", b"", b""),
        (b"data:  two\n\n", b"", b" two"),
        (b"database: x\ndata\n\n", b"", b""),
    ],
)
def test_fields_of_a_frame(frame: bytes, name: bytes, data: bytes) -> None:
    """Name and data are read as the event-stream format has them."""
    assert (event_name(frame), event_data(frame)) == (name, data)
