"""Output becomes harmless, bounded, masked lines, however the stream is split."""

import base64
import json
import time
import urllib.parse
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.process.output import LINE_BYTES, TAIL_BYTES, LineSplitter, OutputBudget, Tail
from driver.secrets import Secrets

SECRET = 'tok"en-2fe7c1\\9-Ωmega'


def lines_of(*pieces: bytes, secrets: Secrets | None = None) -> list[str]:
    splitter = LineSplitter(secrets or Secrets())
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return lines + splitter.flush()


def split_at(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(ends)]


def test_lines_come_as_they_end() -> None:
    """A line is given out with its end, not later."""
    splitter = LineSplitter(Secrets(SECRET))
    assert splitter.feed(b"one\ntwo\nthr") == ["one", "two"]
    assert splitter.feed(b"ee\n") == ["three"]
    assert splitter.flush() == []


def test_line_ends() -> None:
    """LF, CR and CR LF end a line, also when a write ends in between; empty lines are left out."""
    assert lines_of(b"a\r", b"\nb\rc\n\n\n", b"\nd") == ["a", "b", "c", "d"]


def test_controls_do_nothing() -> None:
    """Escape sequences, NUL, C1 controls and changes of direction are shown, not acted on."""
    assert lines_of("\x1b[31mred\x00\x7f \x9b2J\u202eabc\u2028\ufdd0\tend".encode()) == [
        "␛[31mred␀␡ \ufffd2J\ufffdabc\ufffd\ufffd\tend"
    ]


def test_not_utf8() -> None:
    """Bytes that are no UTF-8 become U+FFFD, and a character split over writes stays whole."""
    assert lines_of(b"\xff\xfeok \xe2\x82", b"\xac \xe2\x82") == ["\ufffd\ufffdok € \ufffd"]


def test_long_lines_are_cut() -> None:
    """A line is cut at 8 KiB of UTF-8, on a character's edge, and nothing of it is lost."""
    text = "x" + "é" * 10_000
    lines = lines_of(text.encode())
    assert [len(line.encode()) for line in lines] == [8191, 8192, 3618]
    assert "".join(lines) == text
    assert lines_of(b"y" * LINE_BYTES + b"\n") == ["y" * LINE_BYTES]


def test_open_line_is_bounded() -> None:
    """Without any line end no more than 8 KiB are kept in memory."""
    splitter = LineSplitter(Secrets(SECRET))
    for _ in range(100):
        splitter.feed(b"z" * 5000)
        assert splitter.held <= LINE_BYTES


@pytest.mark.parametrize("form", ["plain", "json", "base64", "base64 shifted", "base64url", "hex", "HEX", "url"])
def test_split_at_every_place(form: str) -> None:
    """A secret split over two writes is masked, wherever the split is and whichever form it has."""
    text = {
        "plain": SECRET,
        "json": json.dumps(SECRET)[1:-1],
        "base64": base64.b64encode(SECRET.encode()).decode(),
        "base64 shifted": base64.b64encode(b"?" + SECRET.encode() + b"?").decode(),
        "hex": SECRET.encode().hex(),
        "HEX": SECRET.encode().hex().upper(),
        "url": urllib.parse.quote(SECRET, safe=""),
        "base64url": base64.urlsafe_b64encode(SECRET.encode()).decode(),
    }[form]
    whole = f"before {text} after\nnext\n".encode()
    middle = text[4:-4]
    for cut in range(len(whole)):
        lines = lines_of(whole[:cut], whole[cut:], secrets=Secrets(SECRET))
        assert "***" in lines[0]
        assert middle not in "".join(lines)
        assert lines[1] == "next"


@given(
    before=st.text(alphabet="ab t\n", max_size=30),
    padding=st.sampled_from([0, LINE_BYTES - 10, LINE_BYTES - 1, LINE_BYTES]),
    cuts=st.lists(st.integers(0, LINE_BYTES + 80), max_size=6),
)
def test_masked_at_every_split(before: str, padding: int, cuts: list[int]) -> None:
    """A secret is masked at any number of splits and over the 8 KiB cut; nothing else is changed or lost."""
    data = ("." * padding + before + SECRET + "!").encode()
    lines = lines_of(*split_at(data, cuts), secrets=Secrets(SECRET))
    assert "".join(lines) == "." * padding + before.replace("\n", "") + "***!"
    assert all(len(line.encode()) <= LINE_BYTES for line in lines)


@given(at=st.integers(1, len(SECRET) - 1), cuts=st.lists(st.integers(0, 60), max_size=4))
def test_masked_over_a_line_end(at: int, cuts: list[int]) -> None:
    """A secret that is broken over two lines is masked in both, but for fewer than 8 of its first characters."""
    data = f"a {SECRET[:at]}\n{SECRET[at:]} b\n".encode()
    first, second = lines_of(*split_at(data, cuts), secrets=Secrets(SECRET))
    assert first == "a ***" or (len(first) < 2 + 8 and first == f"a {SECRET[:at]}")
    assert second == "*** b"


def test_wrapped_base64() -> None:
    """base64(1) wraps its lines; a long secret is masked all the same."""
    secret = "".join(f"{n:x}" for n in range(200))
    lines = lines_of(base64.encodebytes(secret.encode()), secrets=Secrets(secret))
    assert len(lines) > 3
    assert all("***" in line and len(line) < 12 for line in lines)


def test_escapes_inside_a_secret() -> None:
    """What is left of a secret with an escape sequence in it is not the secret."""
    assert lines_of(b"\x1bsecretsecret\x1b", secrets=Secrets("secretsecret")) == ["␛***␛"]


def test_held_at_the_end() -> None:
    """The beginning of a secret that never comes is given out at the end."""
    splitter = LineSplitter(Secrets("secretsecret"))
    assert splitter.feed(b"say secretsecre\n") == []
    assert splitter.flush() == ["say secretsecre"]


def test_a_secret_that_comes_later() -> None:
    """A secret that is added while the program runs is masked from then on."""
    secrets = Secrets()
    splitter = LineSplitter(secrets)
    assert splitter.feed(b"start\nmid") == ["start"]
    secrets.add("doorkeydoorkey")
    assert splitter.feed(b" doorkey") + splitter.feed(b"doorkey\n") == ["mid ***"]


def test_budget() -> None:
    """Lines are kept up to the budget; the first that does not fit spends it, and the rest is counted."""
    budget = OutputBudget(300, tails=0)
    assert budget.keep("a" * 100)
    assert budget.keep("é" * 50)
    assert not budget.keep("b" * 101)
    assert budget.spent
    assert not budget.keep("c")
    budget.drop(1000)
    assert budget.dropped == 1102


def test_short_lines_cost_more() -> None:
    """A line counts as 64 bytes at least, so that no flood of tiny lines is let through."""
    budget = OutputBudget(640, tails=0)
    assert [budget.keep("x") for _ in range(11)] == [True] * 10 + [False]


@pytest.mark.parametrize("piece", [b"a\n", b"\x1b\n", b"\n", "€\n".encode(), b"secretsecret\n"])
def test_a_read_is_split_quickly(piece: bytes) -> None:
    """One read of 16 KiB costs well under 50 ms of the event loop's time, whatever is in it."""
    data = piece * (16 * 1024 // len(piece))
    splitter = LineSplitter(Secrets("secretsecret", "x" * 1000))
    took = []
    for _ in range(5):
        start = time.thread_time()
        splitter.feed(data)
        took.append(time.thread_time() - start)
    assert min(took) < 0.04


def tail_of(*pieces: bytes, secrets: Secrets | None = None) -> list[str]:
    tail = Tail(secrets or Secrets())
    for piece in pieces:
        tail.add(piece)
    return [line for lines in tail.lines() for line in lines]


def test_tail() -> None:
    """However much there was, the last lines are there, and no more is held than is needed for them."""
    assert tail_of(b"a\n", b"b") == ["a", "b"]
    lines = tail_of(*(b"%07d\n" % number for number in range(100_000)))
    assert lines[-1] == "0099999"
    assert TAIL_BYTES <= sum(map(len, lines)) + len(lines) <= 2 * TAIL_BYTES + 8


def test_tail_that_begins_within_a_secret() -> None:
    """Of a secret whose beginning was forgotten nothing is left either, and one over a line end is masked."""
    secret = "".join(f"{number:x}" for number in range(2000))
    halves = [secret[:900].encode() + b"\n", secret[900:].encode()]
    lines = tail_of(*[secret.encode()] * 60, b"." * 20_000, *halves, b"the last", secrets=Secrets(secret))
    assert "".join(lines).replace("*", "").strip(".") == "the last"
    assert len("".join(lines)) > 4_000


def test_budget_for_tails() -> None:
    """The last lines that fit are kept, and do not count as dropped any more."""
    budget = OutputBudget(300, tails=200)
    assert [budget.keep(letter * 90) for letter in "abcd"] == [True, False, False, False]
    assert budget.keep_last(["b" * 90, "c" * 90, "d" * 90]) == ["c" * 90, "d" * 90]
    assert budget.dropped == 90
    assert budget.keep_last(["e" * 90]) == []
