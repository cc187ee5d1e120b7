"""The driver's verdict and tree against the plain statement of the rules."""

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings

from driver.errors import DriverError
from driver.workspace.empty import empty
from tests.driver.workspace.archives import FAST
from tests.driver.workspace.made import archives
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Place

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"
KEPT = {path.name: path.read_bytes() for path in sorted(CORPUS.iterdir())}


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A workspace in memory, with something beside it, of somebody who keeps everything to himself."""
    parent = Path(tempfile.mkdtemp(dir=FAST, prefix="workspace-test-"))
    umask = os.umask(0o077)
    try:
        yield Place(parent)
    finally:
        os.umask(umask)
        empty(parent)
        parent.rmdir()


def compare(place: Place, examples: int) -> Counter[bool]:
    """Try so many archives; how many of them were refused, and how many were not."""
    verdicts: Counter[bool] = Counter()

    @settings(deadline=None, max_examples=examples)
    @given(archives())
    def try_one(archive: bytes) -> None:
        verdicts[place.try_archive(archive) is None] += 1

    try_one()
    return verdicts


def test_good_and_bad_parts(place: Place) -> None:
    """The driver refuses what the rules refuse, and makes of the rest what the rules make of it."""
    verdicts = compare(place, 60)
    assert verdicts[True] > 5
    assert verdicts[False] > 5


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_good_and_bad_parts(place: Place) -> None:
    """The same with many more of them."""
    compare(place, 500)


def test_what_fuzzing_found_worth_keeping(place: Place) -> None:
    """Each archive of the corpus reaches something that the others do not; the rules judge them all the same."""
    assert len(KEPT) > 40
    for name, archive in KEPT.items():
        try_named(place, archive, name)


def flipped(archive: bytes, most: int) -> bytes:
    """An archive with one bit of its middle the other way round."""
    at = len(archive) // 2
    return (archive[:at] + bytes([archive[at] ^ 1]) + archive[at + 1 :] if archive else b"\1")[:most]


@pytest.mark.parametrize("rounds", [8, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_what_is_near_to_it(place: Place, rounds: int) -> None:
    """The same for archives that differ from these in a few places."""
    for name, archive in KEPT.items():
        for seed in range(rounds):
            try_named(place, mutated(archive, 16_384, seed, flipped), f"{name}, changed by {seed}")


def try_named(place: Place, archive: bytes, name: str) -> None:
    try:
        place.try_archive(archive)
    except (AssertionError, DriverError) as error:
        raise AssertionError(f"{name}: {error}") from error
