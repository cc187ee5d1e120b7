"""Bodies of answers, cut however the network cuts them: against h11, which reads the same rules."""

from collections.abc import Iterable
from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.http1.bodies import Body, BodyBroke, BodyUntilClose, ChunkedBody, SizedBody

chunks = st.lists(st.binary(min_size=1, max_size=40), max_size=8)
extensions = st.sampled_from([b"", b";a", b' ;a="b"', b"\t"])
trailers = st.sampled_from([b"", b"X-A: 1\r\n", b"X-A: 1\r\nX-B: 2\r\n"])


def framed(parts: list[bytes], extension: bytes, trailer: bytes) -> bytes:
    body = b"".join(b"%X%s\r\n%s\r\n" % (len(part), extension, part) for part in parts)
    return body + b"0" + extension + b"\r\n" + trailer + b"\r\n"


def pieces(data: bytes, cuts: list[int]) -> Iterable[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return (data[start:end] for start, end in pairwise(edges))


def fed(body: Body, data: bytes, cuts: list[int]) -> bytes:
    return b"".join(body.feed(piece) for piece in pieces(data, cuts))


@given(chunks, extensions, trailers, st.lists(st.integers(0, 500), max_size=12), st.sampled_from([b"", b"behind"]))
def test_chunks_are_cut_out(
    parts: list[bytes], extension: bytes, trailer: bytes, cuts: list[int], behind: bytes
) -> None:
    """The payload comes out whole, whatever the cuts are, and what stands behind the end is kept apart."""
    body = ChunkedBody()
    assert fed(body, framed(parts, extension, trailer) + behind, cuts) == b"".join(parts)
    assert body.ended
    assert body.rest == behind
    body.end()


def read_by_h11(data: bytes) -> bytes | None:
    """What h11 makes of the same bytes; None where it refuses them or they are not whole."""
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    reader.receive_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + data)
    payload = b""
    try:
        while True:
            event = reader.next_event()
            if isinstance(event, h11.Data):
                payload += event.data
            elif isinstance(event, h11.EndOfMessage):
                return payload
            elif event is h11.NEED_DATA:
                return None
    except h11.RemoteProtocolError:
        return None


@given(
    st.lists(
        st.sampled_from([b"0", b"3", b"a", b"\r\n", b"\r", b"\n", b";", b" ", b"abc", b"x", b"-", b"0x1"]), max_size=9
    )
)
def test_what_h11_refuses_is_refused(words: list[bytes]) -> None:
    """Bytes that are no valid body of chunks never pass for one."""
    data = b"".join(words)
    body = ChunkedBody()
    try:
        payload = body.feed(data)
        body.end()
    except BodyBroke:
        return
    assert read_by_h11(data) == payload


@pytest.mark.parametrize("tail", [b"zz\r\n", b"3\n", b"-1\r\n", b"3\r\nabcd", b"3\r\nabc\n\r\n", b"1" * 20 + b"\r\n"])
def test_fault_behind_good_chunks_comes_after_them(tail: bytes) -> None:
    """What is good is given first; the fault behind it is raised by the next look."""
    body = ChunkedBody()
    assert body.feed(b"2\r\nok\r\n" + tail).startswith(b"ok")
    with pytest.raises(BodyBroke):
        body.feed(b"")


@pytest.mark.parametrize("endless", [b"1;" + b"x" * 20_000, b"0\r\n" + b"X-A: 1\r\n" * 10_000])
def test_lines_are_bounded(endless: bytes) -> None:
    """A size line or a trailer without an end is refused."""
    with pytest.raises(BodyBroke):
        ChunkedBody().feed(endless)


@given(st.binary(max_size=60), st.binary(max_size=5), st.lists(st.integers(0, 100), max_size=5))
def test_sized_body(content: bytes, behind: bytes, cuts: list[int]) -> None:
    """A body of known length ends there, and is broken before."""
    body = SizedBody(len(content))
    assert fed(body, content + behind, cuts) == content
    assert (body.ended, body.rest) == (True, behind)
    short = SizedBody(len(content) + 1)
    short.feed(content)
    assert not short.ended
    with pytest.raises(BodyBroke):
        short.end()


def test_body_until_close() -> None:
    """Where nothing tells the length, the end of the connection is the end of the body."""
    body = BodyUntilClose()
    assert body.feed(b"abc") == b"abc"
    assert not body.ended
    body.end()
    assert body.ended


@pytest.mark.parametrize("cut", [b"", b"3", b"3\r\nab", b"3\r\nabc", b"3\r\nabc\r\n0\r\n", b"0\r\nX: 1\r\n"])
def test_chunks_that_break_off(cut: bytes) -> None:
    """A body of chunks that lacks its end is broken."""
    body = ChunkedBody()
    body.feed(cut)
    with pytest.raises(BodyBroke):
        body.end()
