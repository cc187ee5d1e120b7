"""Emptying what a program made to be hard to empty, and goes on making."""

import os
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from driver.errors import WorkspaceError
from driver.layout import Layout
from driver.workspace.descent import DIRECTORY
from driver.workspace.empty import empty

SLOW = [pytest.mark.slow, pytest.mark.timeout(300)]


def deepen(root: Path, name: bytes, depth: int) -> None:
    """Directories in each other, further down than a path can say; each holds a file and a link to the root."""
    here = os.open(root, DIRECTORY)
    for _ in range(depth):
        os.close(os.open(b"file", os.O_CREAT | os.O_WRONLY, 0, dir_fd=here))
        os.symlink(root, b"up", dir_fd=here)
        os.mkdir(name, dir_fd=here)
        below = os.open(name, DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


@pytest.mark.parametrize(
    ("name", "depth"),
    [
        (b"\xff" * 255, 200),
        (b"d", 2000),
        pytest.param(b"d", 20_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
    ids=["long names that are no text", "deep", "very deep"],
)
def test_depth(layout: Layout, name: bytes, depth: int) -> None:
    """However deep it is and however long its names are, it goes, and few descriptors are open meanwhile."""
    deepen(layout.root, name, depth)
    most = 0

    def count() -> None:
        nonlocal most
        most = max(most, len(os.listdir("/proc/self/fd")))

    before = len(os.listdir("/proc/self/fd"))
    empty(layout.root, count)
    assert os.listdir(layout.root) == []
    assert most <= before + 40


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hundred_thousand_files(layout: Layout) -> None:
    """Many files in one directory, many in many, and directories without anything, all go."""
    root = str(layout.root)
    os.mkdir(f"{root}/one")
    for number in range(50_000):
        os.mknod(f"{root}/one/{number}")
    for number in range(500):
        os.makedirs(f"{root}/many/{number}")
        for file in range(100):
            os.mknod(f"{root}/many/{number}/{file}")
    for number in range(5000):
        os.mkdir(f"{root}/{number}")
    empty(layout.root)
    assert os.listdir(layout.root) == []


@pytest.mark.parametrize("mode", [0o000, 0o111, 0o444])
def test_a_tree_without_modes(as_nobody: Path, mode: int) -> None:
    """Directories that forbid everything, in each other and beside files that do, are no obstacle to their owner."""
    root = as_nobody / "root"
    closed = [root / "a" / "b" / "c", root / "a" / "b", root / "a" / "d", root / "a", root]
    for path in reversed(closed):
        path.mkdir()
        (path / "file").touch(0o000)
    (root / "a" / "d" / "link").symlink_to(as_nobody)
    for path in closed:
        path.chmod(mode)
    empty(root)
    assert os.listdir(root) == []
    assert stat.S_IMODE(root.stat().st_mode) & 0o700 == 0o700
    assert os.listdir(as_nobody) == ["root"]


@contextmanager
def meanwhile(act: Callable[[int], None], most: int) -> Iterator[None]:
    """Somebody who acts without a pause, up to so many times; what he finds gone does not stop him."""
    stop = threading.Event()

    def run() -> None:
        for number in range(most):
            if stop.is_set():
                return
            with suppress(OSError):
                act(number)

    other = threading.Thread(target=run)
    other.start()
    try:
        yield
    finally:
        stop.set()
        other.join()


def make_files(root: Path) -> Callable[[int], None]:
    def act(number: int) -> None:
        os.close(os.open(root / f"d{number % 7}" / f"late-{number}", os.O_CREAT | os.O_WRONLY))

    return act


def make_directories(root: Path) -> Callable[[int], None]:
    def act(number: int) -> None:
        (root / f"d{number % 7}" / "a" / "b").mkdir(parents=True, exist_ok=True)

    return act


def make_links(root: Path) -> Callable[[int], None]:
    def act(number: int) -> None:
        place = root / f"d{number % 7}"
        with suppress(OSError):
            place.rmdir()
        place.symlink_to(root.parent / "outside")

    return act


def move_directories(root: Path) -> Callable[[int], None]:
    def act(number: int) -> None:
        (root / f"d{number % 7}").rename(root / f"d{(number + 1) % 7}" / f"moved-{number}")

    return act


@pytest.mark.parametrize("making", [make_files, make_directories, make_links, move_directories])
def test_what_is_made_meanwhile(layout: Layout, making: Callable[[Path], Callable[[int], None]]) -> None:
    """Against somebody who goes on it ends, empty or with an error that says so; nothing outside is touched."""
    outside = layout.root.parent / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    before = len(os.listdir("/proc/self/fd"))
    complaints: list[str] = []
    for _ in range(20):
        for number in range(7):
            (layout.root / f"d{number}" / "x").mkdir(parents=True, exist_ok=True)
        with meanwhile(making(layout.root), 20_000):
            for _ in range(10):
                try:
                    empty(layout.root)
                except WorkspaceError as error:
                    complaints.append(str(error))
        empty(layout.root)
        assert os.listdir(layout.root) == []
        assert os.listdir(outside) == ["kept"]
    assert [text for text in complaints if "was filled again during each of 16 passes" not in text] == []
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.usefixtures("mounts")
def test_mount_points_below_closed_and_deep_directories(layout: Layout) -> None:
    """A mount point far down stays, with the directories that lead to it; all beside it goes."""
    place = layout.root.joinpath(*["d" * 50] * 40, "disk")
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    try:
        deepen(place, b"n" * 200, 50)
        for path in list(place.parents)[:40]:
            (path / "file").touch(0)
            path.chmod(0)
        empty(layout.root)
        left = [path.name for path in layout.root.rglob("*")]
        assert left == ["d" * 50] * 40 + ["disk"]
        assert place.is_mount()
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.usefixtures("mounts")
def test_a_disk_that_cannot_be_written(layout: Layout) -> None:
    """What is mounted read-only and holds something cannot be emptied, and the error names what it holds."""
    place = layout.root / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    try:
        (place / "kept").touch()
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        with pytest.raises(WorkspaceError, match=r"Read-only file system \(at 'kept'\)"):
            empty(layout.root)
    finally:
        subprocess.run(["umount", place], check=True)
