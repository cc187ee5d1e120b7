"""A workspace on a disk of its own, which is full, out of inodes, or not to be written."""

import os
import subprocess
from pathlib import Path

import pytest

from driver.errors import WorkspaceError
from driver.layout import Layout
from driver.workspace.empty import empty
from driver.workspace.extract import Extractor
from driver.workspace.tar_reader import TarLimits
from tests.conftest import Disk
from tests.driver.workspace.archives import END, directory, file, tree, with_writable


def unpack(root: Path, archive: bytes) -> None:
    empty(root)
    extractor = Extractor(Layout(root), TarLimits(bytes=100_000_000))
    try:
        extractor.feed(archive)
        extractor.publish()
    finally:
        extractor.close()


@pytest.mark.parametrize(
    ("options", "archive", "complaint"),
    [
        ("size=1m", file(b"a/large", b"x" * 2_000_000), "unpacking 'a/large': No space left on device"),
        ("size=10m,nr_inodes=12", b"".join(file(b"a/%d" % n) for n in range(20)), r"unpacking 'a/\d+': No space left"),
        ("size=10m,nr_inodes=7", b"".join(directory(b"%d/" % n) for n in range(4)), "unpacking .*/disk: No space left"),
        ("size=10m,ro", file(b"a", b"x"), "unpacking .*/disk: Read-only file system"),
    ],
)
def test_what_does_not_fit_is_an_error_and_leaves_nothing(
    disk: Disk, options: str, archive: bytes, complaint: str
) -> None:
    """The error names the entry and the system's reason, and afterwards the disk can be emptied."""
    root = disk(options)
    with pytest.raises(WorkspaceError, match=complaint):
        unpack(root, archive + END)
    empty(root)
    assert os.listdir(root) == []


def test_a_disk_is_filled_and_emptied_again(disk: Disk) -> None:
    """A root that is a mount point is a workspace like any, once and again."""
    root = disk("size=1m")
    for content in (b"1" * 700_000, b"2" * 700_000):
        unpack(root, file(b"a/x", content) + END)
        assert tree(root) == with_writable({"a": None, "a/x": content})
    empty(root)
    assert os.listdir(root) == []


def test_mounted_output_is_emptied_and_filled(disk: Disk) -> None:
    """A disk below the root, as a cluster mounts one for the results, stays where it is."""
    root = disk("size=1m")
    (root / "out").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", root / "out"], check=True)
    try:
        (root / "out/old").touch()
        unpack(root, file(b"a/x") + END)
        assert tree(root) == with_writable({"a": None, "a/x": b""})
        assert (root / "out").is_mount()
    finally:
        subprocess.run(["umount", root / "out"], check=True)


@pytest.mark.parametrize("kind", ["file", "link", "below a file"])
def test_a_root_that_is_no_directory(tmp_path: Path, kind: str) -> None:
    """It is refused, and what stands in its place stays."""
    (tmp_path / "target").mkdir()
    (tmp_path / "file").write_text("kept")
    (tmp_path / "link").symlink_to("target")
    root = tmp_path / {"file": "file", "link": "link", "below a file": "file/root"}[kind]
    with pytest.raises(WorkspaceError, match=r"cannot be emptied: (File exists|Not a directory)"):
        empty(root)
    assert (tmp_path / "file").read_text() == "kept"
