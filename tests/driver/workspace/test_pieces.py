"""Pieces go from one thread to another in order, and neither waits for one that is gone."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from driver.workspace.pieces import Check, Pieces

GIVEN = [bytes([number]) * (number % 7 + 1) for number in range(200)]


def nothing() -> None:
    """Nobody wants the giver to end."""


def filling(pieces: Iterator[bytes]) -> Callable[[memoryview, Check], int]:
    def fill(buffer: memoryview, _: Check) -> int:
        piece = next(pieces, b"")
        buffer[: len(piece)] = piece
        return len(piece)

    return fill


def test_everything_is_taken_in_order() -> None:
    """Each piece is what was filled in, whoever is the faster one."""
    way = Pieces(3, 8)
    taken: list[bytes] = []
    with ThreadPoolExecutor() as threads:
        took = threads.submit(way.take_all, lambda piece: taken.append(bytes(piece)))
        way.give_all(filling(iter(GIVEN)), nothing)
        took.result(10)
    assert taken == GIVEN


def test_few_pieces_wait() -> None:
    """While nobody takes, no more buffers are filled than there are."""
    way = Pieces(3, 8)
    given = 0
    waits = threading.Event()

    def fill(buffer: memoryview, _: Check) -> int:
        nonlocal given
        given += 1
        return 1 if given < 10 else 0

    with ThreadPoolExecutor() as threads:
        gave = threads.submit(way.give_all, fill, waits.set)
        assert waits.wait(10)
        assert given == 3
        way.take_all(lambda _: None)
        gave.result(10)
    assert given == 10


def test_an_error_of_the_taker_ends_the_giver() -> None:
    """Nothing more is taken, and the error comes out; the giver is cancelled for it, for whatever it waits."""
    first = iter((1,))

    def waits_for_the_network(_: memoryview, check: Check) -> int:
        while not (size := next(first, 0)):
            check()
        return size

    for fill in (filling(iter(GIVEN)), waits_for_the_network):
        way = Pieces(3, 8)
        taken: list[bytes] = []
        is_over = threading.Event()

        def take(piece: memoryview, taken: list[bytes] = taken) -> None:
            taken.append(bytes(piece))
            raise OSError("full")

        def check(is_over: threading.Event = is_over) -> None:
            if is_over.is_set():
                raise ValueError("cancelled")

        with ThreadPoolExecutor() as threads:
            gave = threads.submit(way.give_all, fill, check)
            with pytest.raises(OSError, match="full"):
                way.take_all(take)
            is_over.set()
            with pytest.raises(ValueError, match="cancelled"):
                gave.result(10)
        assert len(taken) == 1


def test_an_error_of_the_giver_waits_for_what_was_given() -> None:
    """What came before it is taken, and the error comes out."""

    def breaks() -> Iterator[bytes]:
        yield from GIVEN[:2]
        raise ValueError("broke")

    taken: list[bytes] = []
    way = Pieces(3, 8)
    with ThreadPoolExecutor() as threads:
        gave = threads.submit(way.give_all, filling(breaks()), nothing)
        with pytest.raises(ValueError, match="broke"):
            gave.result(10)
        way.take_all(lambda piece: taken.append(bytes(piece)))
    assert taken == GIVEN[:2]


def test_a_giver_that_waits_can_be_cancelled() -> None:
    """What `check` raises ends it, and what was given is still there."""

    def cancelled() -> None:
        raise ValueError("cancelled")

    taken: list[bytes] = []
    way = Pieces(3, 8)
    with pytest.raises(ValueError, match="cancelled"):
        way.give_all(filling(iter(GIVEN)), cancelled)
    way.take_all(lambda piece: taken.append(bytes(piece)))
    assert taken == GIVEN[:3]


def test_a_giver_that_never_begins() -> None:
    """A cancel can come before its thread was there; the taker does not wait for it then."""
    taken: list[bytes] = []
    way = Pieces(3, 8)
    way.end()
    way.take_all(lambda piece: taken.append(bytes(piece)))
    assert taken == []
