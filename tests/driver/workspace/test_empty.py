"""Emptying a workspace, whatever was left in it."""

import contextlib
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from driver.errors import WorkspaceError
from driver.layout import Layout
from driver.workspace.descent import DIRECTORY, Descent
from driver.workspace.empty import empty


def test_removes_files_directories_links_and_fifos(layout: Layout) -> None:
    """Everything below the root goes and what links led to stays."""
    outside = layout.root.parent / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (layout.root / "a" / "b").mkdir(parents=True)
    (layout.root / "a" / "file").write_text("x")
    (layout.root / "to-directory").symlink_to(outside)
    (layout.root / "a" / "to-file").symlink_to(outside / "kept")
    (layout.root / "a" / "dangling").symlink_to("nowhere")
    os.mkfifo(layout.root / "a" / "fifo")
    os.link(outside / "kept", layout.root / "hard")

    empty(layout.root)

    assert os.listdir(layout.root) == []
    assert (outside / "kept").read_text() == "kept"


def test_makes_a_missing_root(tmp_path: Path) -> None:
    """A root that is missing is there afterwards."""
    empty(tmp_path / "not" / "yet")
    assert os.listdir(tmp_path / "not" / "yet") == []


def test_refuses_a_root_that_is_a_link(tmp_path: Path) -> None:
    """A link in the root's place is not followed."""
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "kept").touch()
    (tmp_path / "root").symlink_to("target")
    with pytest.raises(WorkspaceError, match="Not a directory"):
        empty(tmp_path / "root")
    assert os.listdir(tmp_path / "target") == ["kept"]


def test_copes_with_names_that_are_no_text(layout: Layout) -> None:
    """Names are bytes."""
    root = os.fsencode(layout.root)
    for name in (b"\xff\xfe", b"new\nline", b" ", b"-rf", b"\x01", b"n" * 255):
        os.mkdir(root + b"/" + name)
        with open(root + b"/" + name + b"/" + name, "wb"):
            pass
    empty(layout.root)
    assert os.listdir(layout.root) == []


def test_a_tree_deeper_than_descriptors_and_path_lengths(layout: Layout) -> None:
    """Depth costs neither stack nor descriptors."""
    here = os.open(layout.root, DIRECTORY)
    for _ in range(1500):
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    before = len(os.listdir("/proc/self/fd"))

    empty(layout.root)

    assert os.listdir(layout.root) == []
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("mode", [0o000, 0o100, 0o200, 0o300, 0o400, 0o500, 0o600])
def test_modes_that_forbid_it(as_nobody: Path, mode: int) -> None:
    """Directories that their owner may not read, search or write are emptied all the same."""
    root = as_nobody / "root"
    (root / "closed" / "closed").mkdir(parents=True)
    (root / "closed" / "closed" / "file").touch(0o000)
    for path in (root / "closed" / "closed", root / "closed", root):
        path.chmod(mode)
    empty(root)
    assert os.listdir(root) == []


def test_what_cannot_be_removed_is_named(as_nobody: Path) -> None:
    """An entry of somebody else is an error that names it."""
    root = as_nobody / "root"
    (root / "theirs").mkdir(parents=True)
    (root / "theirs" / "file").touch()
    if os.getuid() != 0:
        pytest.skip("only root can give a directory away")
    os.seteuid(0)
    os.chown(root / "theirs", 0, 0)
    os.seteuid(65534)
    with pytest.raises(WorkspaceError, match=r"Permission denied .*'file'"):
        empty(root)


def test_a_checkpoint_breaks_off(layout: Layout) -> None:
    """What the checkpoint raises comes through, and no descriptor is left open."""
    (layout.root / "a").mkdir()
    before = len(os.listdir("/proc/self/fd"))

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        empty(layout.root, stop)
    assert len(os.listdir("/proc/self/fd")) == before
    assert os.listdir(layout.root) == ["a"]


def test_entries_that_appear_meanwhile(layout: Layout) -> None:
    """What is made while the tree is walked goes too."""
    (layout.root / "a" / "b").mkdir(parents=True)
    left = [3]

    def interfere() -> None:
        if left[0] and (layout.root / "a").exists():
            left[0] -= 1
            (layout.root / "a" / f"late-{left[0]}").touch()
            (layout.root / f"late-{left[0]}").mkdir()

    empty(layout.root, interfere)
    assert left == [0]
    assert os.listdir(layout.root) == []


def test_a_tree_that_goes_on_filling(layout: Layout) -> None:
    """A writer that never stops is an error in the end."""

    def interfere() -> None:
        (layout.root / "again").touch()

    with pytest.raises(WorkspaceError, match="filled again during each of 16 passes"):
        empty(layout.root, interfere)


def test_a_directory_that_becomes_a_link(layout: Layout, tmp_path: Path) -> None:
    """A swap between looking and entering leads nowhere else."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (layout.root / "a").mkdir()
    (layout.root / "b").mkdir()
    calls: list[None] = []

    def interfere() -> None:
        calls.append(None)
        if len(calls) == 2:  # inside one of the two, the other is known and not yet entered
            for name in ("a", "b"):
                with contextlib.suppress(OSError):
                    os.rmdir(layout.root / name)
                    os.symlink(outside, layout.root / name)

    empty(layout.root, interfere)
    assert os.listdir(layout.root) == []
    assert os.listdir(outside) == ["kept"]


def test_two_at_a_time(layout: Layout) -> None:
    """Somebody else who removes the same tree does no harm."""
    for number in range(200):
        (layout.root / f"d{number}" / "x").mkdir(parents=True)
        (layout.root / f"d{number}" / "file").touch()
    other = threading.Thread(target=shutil.rmtree, args=(layout.root / "d1",), kwargs={"ignore_errors": True})
    other.start()
    empty(layout.root)
    other.join()
    assert os.listdir(layout.root) == []


def test_a_directory_that_is_moved_during_the_walk(tmp_path: Path) -> None:
    """The way back is the way that was taken, or none."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    descent = Descent(os.open(tmp_path, DIRECTORY), max_open=1)
    descent.enter("a")
    descent.enter("b")
    assert descent.depth == 2
    os.rename(tmp_path / "a" / "b", tmp_path / "elsewhere" / "b")
    with pytest.raises(OSError, match="moved"):
        descent.leave()
    descent.close()


@pytest.mark.usefixtures("mounts")
def test_mount_points_stay_and_are_emptied(layout: Layout, tmp_path: Path) -> None:
    """A mount point and what leads to it stay; a file that is mounted stays without content."""
    (tmp_path / "bound").mkdir()
    (tmp_path / "bound" / "inside").mkdir()
    (tmp_path / "bound.txt").write_text("content")
    for path in ("disk", "nested/disk", "nested/other", "bound"):
        (layout.root / path).mkdir(parents=True)
    (layout.root / "bound.txt").touch()
    root = layout.root
    mounted = (root / "disk", root / "nested" / "disk", root / "bound", root / "bound.txt")
    try:
        subprocess.run(["mount", "-t", "tmpfs", "none", mounted[0]], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", mounted[1]], check=True)
        subprocess.run(["mount", "--bind", tmp_path / "bound", mounted[2]], check=True)
        subprocess.run(["mount", "--bind", tmp_path / "bound.txt", mounted[3]], check=True)
        (root / "disk" / "a" / "b").mkdir(parents=True)
        (root / "nested" / "disk" / "file").touch()

        empty(root)

        left = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
        assert left == ["bound", "bound.txt", "disk", "nested", "nested/disk"]
        assert (tmp_path / "bound.txt").read_text() == ""
        assert os.listdir(tmp_path / "bound") == []
    finally:
        for mount in mounted:
            subprocess.run(["umount", mount], check=False, capture_output=True)


@pytest.mark.usefixtures("mounts")
def test_a_root_that_is_a_mount_point(layout: Layout) -> None:
    """The root itself may be mounted."""
    subprocess.run(["mount", "-t", "tmpfs", "none", layout.root], check=True)
    try:
        (layout.root / "a" / "b").mkdir(parents=True)
        empty(layout.root)
        assert os.listdir(layout.root) == []
    finally:
        subprocess.run(["umount", layout.root], check=True)
