"""An output file is new, its owner's only, and where it was meant to be."""

import os
import stat
from pathlib import Path

import pytest

from driver.errors import ProgramError
from driver.process.newfile import create_below


def test_new_file(tmp_path: Path) -> None:
    """The file is made with mode 0600, whatever its directory's depth."""
    (tmp_path / "a/b").mkdir(parents=True)
    fd = create_below(tmp_path, tmp_path / "a/b/file")
    assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
    assert not os.get_inheritable(fd)
    os.close(fd)
    assert (tmp_path / "a/b/file").read_bytes() == b""


def test_refused(tmp_path: Path) -> None:
    """No existing file, no link as the file or on the way, and nothing outside is written to."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "old").write_text("old")
    (root / "dangling").symlink_to(outside / "new")
    (root / "way").symlink_to(outside)
    before = os.listdir("/proc/self/fd")
    for name, words in [
        ("old", "File exists"),
        ("dangling", "File exists"),
        ("way/new", "cannot be made"),
        ("missing/new", "No such file"),
        ("../outside/new", "is not a name below"),
        ("", "is not a name below"),
    ]:
        with pytest.raises(ProgramError, match=words):
            create_below(root, root / name)
    with pytest.raises(ProgramError, match="is not below"):
        create_below(root, outside / "new")
    assert list(outside.iterdir()) == []
    assert (root / "old").read_text() == "old"
    assert os.listdir("/proc/self/fd") == before
