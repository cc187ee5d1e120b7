"""How full the model's context is."""

from hypothesis import given
from hypothesis import strategies as st

from kinds.programs.window import Window


def test_nobody_told() -> None:
    """Without a context nothing is ever too long."""
    assert Window(None).share(10**12) == 0


def test_before_the_first_count() -> None:
    """Three bytes count as a token, and room for the answer is kept free: 16,384 tokens, at most a quarter."""
    assert Window(200_000).share(3 * (200_000 - 16_384)) == 1
    assert Window(8_000).share(3 * 6_000) == 1


def test_the_provider_knows_better() -> None:
    """Its own count is the base; what came since counts at three bytes a token, or at its rate where that is more."""
    window = Window(100_000)
    window.counted(40_000, 10_000)
    assert window.tokens(40_000) == 10_000
    assert window.tokens(43_000) == 11_000
    window.counted(40_000, 20_000)
    assert window.tokens(43_000) == 21_500


def test_what_was_left_out_counts_no_more() -> None:
    """A transcript that became shorter takes less, at the provider's own rate."""
    window = Window(100_000)
    window.counted(40_000, 10_000)
    assert window.tokens(20_000) == 5_000


def test_a_count_of_zero_tells_nothing() -> None:
    """A provider that reports no usage changes no estimate."""
    window = Window(100_000)
    window.counted(300, 0)
    assert window.tokens(300) == 100


@given(st.integers(0, 10**7), st.integers(-5, 10**12), st.integers(0, 10**7))
def test_no_count_is_believed_blindly(before: int, counted: int, now: int) -> None:
    """Whatever a provider reports: a byte is at most a token, a token at most eight bytes, but for what is around."""
    window = Window(100_000)
    window.counted(before, counted)
    assert now // 9 <= window.tokens(now) <= now + 32_768 + now * 32_768 // max(before, 1)
