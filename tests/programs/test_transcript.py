"""Transcripts as encoded bytes."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinds.programs.transcript import CHUNK_BYTES, Entry, Item, Transcript
from kinds.programs.wires import ToolCall, ToolResult, encode, wire_named


@settings(deadline=None)
@given(st.lists(st.lists(st.text(max_size=50), max_size=4), max_size=8), st.booleans())
def test_the_length_is_exact(entries: list[list[str]], wrapped: bool) -> None:
    """`encoded_bytes` is what `chunks` yields, and the pieces make a JSON array."""
    transcript = Transcript()
    opening, closing = (b'{"content":[', b"]}") if wrapped else (b"", b"")
    for texts in entries:
        transcript.add(Entry([Item(encode(text)) for text in texts], opening, closing))
    data = b"".join(transcript.chunks())
    assert len(data) == transcript.encoded_bytes
    kept = [texts for texts in entries if texts]
    expected = [{"content": texts} for texts in kept] if wrapped else [text for texts in kept for text in texts]
    assert json.loads(b"[" + data + b"]") == expected


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "extend", "renew", "shorten", "unread"]), st.text(max_size=30), st.integers(0, 500)
        ),
        max_size=30,
    ),
    st.booleans(),
)
def test_any_history_keeps_the_length_right(steps: list[tuple[str, str, int]], wrapped: bool) -> None:
    """Whatever is added, put in another's place or shortened: the length is exact, and the newest value stays."""
    transcript = Transcript()
    opening, closing = (b'{"content":[', b"]}") if wrapped else (b"", b"")
    newest = "brief"
    transcript.add(Entry([Item(encode(newest))], opening, closing))
    for what, text, number in steps:
        item = Item(encode(text), encode("short"))
        if what == "add":
            transcript.add(Entry([item], opening, closing))
        elif what == "extend":
            transcript.extend([item])
        elif what == "renew":
            transcript.renew(item)
        else:
            before = transcript.encoded_bytes
            count = transcript.shorten(number, unread=what == "unread")
            assert (transcript.encoded_bytes < before) == (count > 0)
        newest = text if what in ("add", "extend", "renew") else newest
        data = b"".join(transcript.chunks())
        assert len(data) == transcript.encoded_bytes < transcript.held_bytes
        last = json.loads(b"[" + data + b"]")[-1]
        assert (last["content"][-1] if wrapped else last) == newest


def test_pieces_are_small() -> None:
    """A large value is yielded in pieces of at most 64 KiB."""
    transcript = Transcript()
    transcript.add(Entry([Item(encode("x" * 300_000)), Item(b"1")]))
    pieces = list(transcript.chunks())
    assert max(map(len, pieces)) <= CHUNK_BYTES
    assert sum(map(len, pieces)) == transcript.encoded_bytes == 300_002 + 2


@pytest.mark.parametrize("name", ["responses", "chat", "messages"])
def test_shortening_takes_the_oldest_results_first(name: str) -> None:
    """The oldest tool results give way, the newest entry and what has no short form stay."""
    wire = wire_named(name)
    transcript = Transcript()
    transcript.add(wire.user("the brief " * 100))
    for number in range(4):
        call = ToolCall(f"c{number}", "read", "{}")
        transcript.add(wire.results([ToolResult(call, f"result {number} " * 1000, f"(left out {number})")]))
    before = transcript.held_bytes
    assert transcript.shorten(before - 5000) == 1
    text = b"".join(transcript.chunks()).decode()
    assert "result 0" not in text
    assert "(left out 0)" in text
    assert "result 1" in text
    assert transcript.shorten(0) == 2
    text = b"".join(transcript.chunks()).decode()
    assert text.count("result 3") == 1000
    assert text.count("the brief") == 100
    assert len(text) == transcript.encoded_bytes
    assert transcript.shorten(0) == 0
