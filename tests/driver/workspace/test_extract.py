"""Unpacking archives onto a disk, also while somebody interferes."""

import os
import shutil
import stat
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driver.errors import ArchiveRefused, WorkspaceError
from driver.layout import Layout
from driver.workspace.empty import empty
from driver.workspace.extract import Extractor
from driver.workspace.tar_reader import TarLimits
from tests.driver.workspace.archives import (
    END,
    FAST,
    block,
    directory,
    file,
    pad_name,
    padded,
    pax,
    record,
    tree,
    with_writable,
)


def extract(layout: Layout, archive: bytes, chunk: int = 1 << 20) -> Extractor:
    """Unpack and publish."""
    extractor = Extractor(layout, TarLimits(bytes=100_000_000))
    try:
        for at in range(0, len(archive), chunk):
            extractor.feed(archive[at : at + chunk])
        extractor.publish()
    finally:
        extractor.close()
    return extractor


def test_publishes_a_read_only_tree(layout: Layout) -> None:
    """Inputs are read-only, whatever the archive and the umask say, and the writable directories exist."""
    archive = file(b"task.json", b"{}") + file(b"a/b/run", b"#!", mode=b"0004755\0") + directory(b"empty/") + END
    umask = os.umask(0o077)
    try:
        extractor = extract(layout, archive)
    finally:
        os.umask(umask)
    content = {"task.json": b"{}", "a": None, "a/b": None, "a/b/run": b"#!", "empty": None}
    assert tree(layout.root) == with_writable(content)
    modes = {name: oct(stat.S_IMODE((layout.root / name).lstat().st_mode)) for name in content}
    expected = {"task.json": "0o444", "a": "0o555", "a/b": "0o555", "a/b/run": "0o555", "empty": "0o555"}
    assert modes == expected
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in layout.writable} == {"0o700"}
    assert (extractor.bytes, extractor.files) == (len(archive), 2)


def test_nothing_is_in_place_before_it_is_published(layout: Layout) -> None:
    """Before that there is only the staging directory, and every descriptor is closed afterwards."""
    before = len(os.listdir("/proc/self/fd"))
    extractor = Extractor(layout, TarLimits(bytes=10_000))
    extractor.feed(file(b"a/b/c", b"abc") + file(b"x", b"x" * 600)[:700])
    assert os.listdir(layout.root) == [".incoming"]
    extractor.close()
    extractor.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_incomplete_archive_is_not_published(layout: Layout) -> None:
    """The end marks are asked for before anything is moved."""
    with pytest.raises(ArchiveRefused, match="end marks"):
        extract(layout, file(b"a", b"abc"))
    assert os.listdir(layout.root) == [".incoming"]


@pytest.mark.parametrize("name", [b"work", b"out/result.json", b".sessions/x/y", b".incoming/x", b"./work/a"])
def test_refuses_what_is_no_input(layout: Layout, name: bytes) -> None:
    """An archive holds inputs only: the writable directories are not its to fill."""
    with pytest.raises(ArchiveRefused, match="an archive holds inputs only"):
        extract(layout, file(name) + END)


def test_works_without_privileges(as_nobody: Path) -> None:
    """A user who is bound by modes can unpack, publish and empty again, twice."""
    layout = Layout(as_nobody / "root")
    archive = directory(b"a/") + directory(b"a/b/") + file(b"a/b/x") + file(b"a/y") + file(b"z") + END
    for _ in range(2):
        empty(layout.root)
        extract(layout, archive)
        assert tree(layout.root) == with_writable({"a": None, "a/b": None, "a/b/x": b"", "a/y": b"", "z": b""})
        with pytest.raises(PermissionError):
            (layout.root / "a" / "new").touch()
    empty(layout.root)
    assert os.listdir(layout.root) == []


def test_a_deep_tree(layout: Layout) -> None:
    """A path as long as the rules allow costs no more descriptors than another."""
    name = pad_name(4096)
    deep = b"d/" * 1100 + b"x"
    before = len(os.listdir("/proc/self/fd"))
    extract(layout, pax(record(b"path", name)) + block(b"x") + pax(record(b"path", deep)) + block(b"x") + END)
    assert len(os.listdir("/proc/self/fd")) == before
    depth = 0
    here = os.open(layout.root, os.O_DIRECTORY)
    while "d" in os.listdir(here):
        below = os.open("d", os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here, depth = below, depth + 1
    assert (depth, os.listdir(here)) == (1100, ["x"])
    os.close(here)
    empty(layout.root)
    assert os.listdir(layout.root) == []


def test_it_can_be_broken_off_at_each_directory(layout: Layout) -> None:
    """Entries that lie far apart take long to reach: the checkpoint is asked for each, and what it raises comes out."""
    entries = [pax(record(b"path", b"%d/" % (number % 2) + b"d/" * 200 + b"%d" % number)) for number in range(20)]
    asked = 0

    def checkpoint() -> None:
        nonlocal asked
        asked += 1
        if asked == 12:
            raise KeyboardInterrupt

    extractor = Extractor(layout, TarLimits(bytes=1_000_000), checkpoint)
    with pytest.raises(KeyboardInterrupt):
        extractor.feed(b"".join(entry + block(b"x") for entry in entries))
    assert extractor.files < 12
    extractor.close()


@pytest.mark.parametrize("swapped", ["directory", "parent", "file"])
def test_a_link_in_the_way_is_not_followed(layout: Layout, tmp_path: Path, swapped: str) -> None:
    """Somebody who puts links into the staging directory fails the unpacking and gains nothing."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("kept")
    extractor = Extractor(layout, TarLimits(bytes=10_000))
    extractor.feed(directory(b"a/") + directory(b"a/b/") + file(b"c/x"))
    staging = layout.root / ".incoming"
    if swapped == "directory":
        (staging / "a" / "b").rmdir()
        (staging / "a" / "b").symlink_to(outside)
    elif swapped == "parent":
        shutil.rmtree(staging / "a")
        (staging / "a").symlink_to(outside)
        (outside / "b").mkdir()
    else:
        (staging / "a" / "b" / "victim").symlink_to(outside / "victim")
    with pytest.raises(WorkspaceError, match="unpacking 'a/b/victim'"):
        extractor.feed(file(b"a/b/victim", b"gained") + END)
    extractor.close()
    assert (outside / "victim").read_text() == "kept"
    assert "gained" not in (outside / "victim").read_text()
    empty(layout.root)
    assert os.listdir(layout.root) == []


def test_a_racer_gains_nothing(layout: Layout, tmp_path: Path) -> None:
    """Somebody who swaps directories and links all the time may fail the unpacking, but leads nothing outside."""
    outside = tmp_path / "outside"
    outside.mkdir()
    stop = threading.Event()

    def race() -> None:
        inside = layout.root / ".incoming" / "a"
        while not stop.is_set():
            with suppress(OSError):
                inside.rename(inside.with_name("aside"))
                inside.symlink_to(outside)
            with suppress(OSError):
                inside.unlink()
                inside.with_name("aside").rename(inside)

    racer = threading.Thread(target=race)
    racer.start()
    failures = 0
    try:
        for _ in range(300):
            if failures == 10:
                break
            extractor = Extractor(layout, TarLimits(bytes=10_000_000))
            try:
                # Each entry is somewhere else than the one before it, so that `a` is entered again and again.
                for number in range(100):
                    extractor.feed(file(b"a/%d/x" % number, b"x") + file(b"b/%d" % number))
            except WorkspaceError:
                failures += 1
            finally:
                extractor.close()
            empty(layout.root)
    finally:
        stop.set()
        racer.join()
    assert os.listdir(outside) == []
    assert failures


def test_a_link_in_place_of_a_writable_directory(layout: Layout, tmp_path: Path) -> None:
    """A writable directory is never somewhere else."""
    extractor = Extractor(layout, TarLimits(bytes=10_000))
    extractor.feed(END)
    (layout.root / "work").symlink_to(tmp_path)
    with pytest.raises(WorkspaceError, match="Not a directory"):
        extractor.publish()
    extractor.close()


def test_mount_points_are_filled_in_place(layout: Layout) -> None:
    """What emptying left in place is used: inputs are unpacked into it, writable directories stay."""
    (layout.root / "repos" / "cache").mkdir(parents=True)
    (layout.root / "work").mkdir()
    extract(layout, file(b"repos/cache/x", b"x") + file(b"repos/new/y", b"y") + file(b"z", b"z") + END)
    content = {"repos": None, "repos/cache": None, "repos/cache/x": b"x", "repos/new": None, "repos/new/y": b"y"}
    assert tree(layout.root) == with_writable({**content, "z": b"z"})


def test_a_full_disk_is_told(layout: Layout) -> None:
    """The reason of the system is in the error, with the entry."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", layout.root], check=False)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(WorkspaceError, match="unpacking 'large': No space left on device"):
            extract(layout, file(b"large", bytes(200_000)) + END)
        empty(layout.root)
        assert os.listdir(layout.root) == []
    finally:
        subprocess.run(["umount", layout.root], check=True)


PART = st.binary(min_size=1, max_size=12).filter(
    lambda part: not any(byte < 0x20 or byte in b"/\x7f\xc2" for byte in part)
)
PARTS = st.lists(PART.filter(lambda part: part not in (b".", b"..")), min_size=1, max_size=4).map(tuple)


def _consistent(files: dict[tuple[bytes, ...], bytes]) -> bool:
    return not any(path[:depth] in files for path in files for depth in range(1, len(path)))


def _archive(files: dict[tuple[bytes, ...], bytes]) -> bytes:
    return b"".join(
        pax(record(b"path", b"in/" + b"/".join(path))) + block(b"x", size=len(data)) + padded(data)
        for path, data in files.items()
    )


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(PARTS, st.binary(max_size=1100), max_size=6).filter(_consistent), st.integers(1, 4000))
def test_any_tree_in_any_pieces(files: dict[tuple[bytes, ...], bytes], chunk: int) -> None:
    """A good archive gives its tree, wherever the pieces are cut."""
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        layout = Layout(Path(name))
        extract(layout, _archive(files) + END, chunk)
        found = {path: data for path, data in tree(layout.root).items() if data is not None}
        assert found == {os.fsdecode(b"in/" + b"/".join(path)): data for path, data in files.items()}
        empty(layout.root)
