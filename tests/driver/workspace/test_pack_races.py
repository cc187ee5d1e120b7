"""Packing `out/` while somebody moves things in it, and whatever the order in which it was filled."""

import os
import random
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driver.errors import PackagingError
from driver.layout import Layout
from driver.workspace.pack import pack
from tests.driver.workspace.archives import FAST

SECRET = b"this is nobody's result"
INSIDE = b"this is the result"
MOST_PACKINGS = 30_000


def swap_directory(out: Path, aside: Path, outside: Path) -> None:
    (out / "d").rename(aside)
    (out / "d").symlink_to(outside)
    (out / "d").unlink()
    aside.rename(out / "d")


def swap_parent(out: Path, aside: Path, outside: Path) -> None:
    out.rename(aside)
    out.symlink_to(outside.parent)
    out.unlink()
    aside.rename(out)


def swap_file(out: Path, aside: Path, outside: Path) -> None:
    (out / "d" / "x").rename(aside)
    (out / "d" / "x").symlink_to(outside / "x")
    (out / "d" / "x").unlink()
    aside.rename(out / "d" / "x")


def put_in_its_place(out: Path, aside: Path, outside: Path) -> None:
    """A link takes the name over in one step, and so does what was there before."""
    link = out.parent / "link"
    link.symlink_to(outside / "x")
    os.link(out / "d" / "x", aside)
    link.rename(out / "d" / "x")
    aside.rename(out / "d" / "x")


@contextmanager
def again_and_again(act: Callable[[], None]) -> Iterator[None]:
    """Somebody who does it without a pause, meanwhile; what fails of it shows here."""
    stop = threading.Event()
    failed: list[OSError] = []

    def run() -> None:
        try:
            while not stop.is_set():
                act()
        except OSError as error:
            failed.append(error)

    racer = threading.Thread(target=run)
    racer.start()
    try:
        yield
    finally:
        stop.set()
        racer.join()
    assert failed == []


@pytest.mark.parametrize("swap", [swap_directory, swap_parent, swap_file, put_in_its_place])
def test_a_racer_brings_nothing_in(layout: Layout, swap: Callable[[Path, Path, Path], None]) -> None:
    """A directory or a file that is a link for moments is packed as it was, or the packing fails and names it."""
    outside = layout.root.parent / "outside" / "d"
    outside.mkdir(parents=True)
    (outside / "x").write_bytes(SECRET)
    (layout.out / "d").mkdir(parents=True)
    (layout.out / "d" / "x").write_bytes(INSIDE)
    packed, refused = 0, list[str]()
    with again_and_again(lambda: swap(layout.out, layout.root / "aside", outside)):
        for _ in range(MOST_PACKINGS):
            into = BytesIO()
            try:
                pack(layout.out, into)
            except PackagingError as error:
                refused.append(str(error))
            else:
                packed += 1
            assert SECRET not in into.getvalue()
            if packed >= 300 and len(refused) >= 300:
                break
    assert refused, "nothing was swapped at the right moment"
    assert [message for message in refused if not message.startswith("entry 'out/")] == []


@pytest.mark.parametrize(
    ("other", "message"), [(os.symlink, "it cannot be read"), (os.rename, "it was replaced while it was being packed")]
)
def test_a_directory_that_is_another_before_it_is_entered(
    layout: Layout, other: Callable[[Path, Path], None], message: str
) -> None:
    """The directory that was listed is the one that is entered: no link, and no other in its place."""
    outside = layout.root.parent / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(SECRET)
    (layout.out / "b").mkdir(parents=True)
    (layout.out / "a").write_bytes(b"a")

    class Meddler(BytesIO):
        def write(self, data: object) -> int:
            if bytes(data).startswith(b"out/a\0"):  # type: ignore[call-overload]  # it is bytes
                (layout.out / "b").rmdir()
                other(outside, layout.out / "b")
            return super().write(data)  # type: ignore[arg-type]

    into = Meddler()
    with pytest.raises(PackagingError, match=f"'out/b/': {message}"):
        pack(layout.out, into)
    assert SECRET not in into.getvalue()


NAMES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters="/"), min_size=1, max_size=8)
TREES = st.dictionaries(
    st.lists(NAMES.filter(lambda name: name not in (".", "..")), min_size=1, max_size=3).map(tuple),
    st.binary(max_size=600),
    max_size=6,
).filter(lambda files: not any(path[:depth] in files for path in files for depth in range(1, len(path))))


@settings(deadline=None, max_examples=30)
@given(TREES, st.randoms(use_true_random=False))
def test_the_order_does_not_matter(files: dict[tuple[str, ...], bytes], rng: random.Random) -> None:
    """Whatever was made first, the bytes are the same, and other readers find in them what was there."""
    archives = []
    for _ in range(2):
        order = list(files)
        rng.shuffle(order)
        with tempfile.TemporaryDirectory(dir=FAST, prefix="workspace-test-") as name:
            out = Path(name) / "out"
            out.mkdir()
            for path in order:
                out.joinpath(*path[:-1]).mkdir(parents=True, exist_ok=True)
                out.joinpath(*path).write_bytes(files[path])
            into = BytesIO()
            pack(out, into)
            archives.append(into.getvalue())
    assert archives[0] == archives[1]
    with tarfile.open(fileobj=BytesIO(archives[0])) as archive:
        read = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
        assert {name: content.read() for name, content in read.items() if content} == {
            "/".join(("out", *path)): content for path, content in files.items()
        }
