"""A file that is put among read-only inputs."""

import os
import stat
from pathlib import Path

import pytest

from kinds.staging import stage
from tests.driver.workspace.conftest import as_nobody  # noqa: F401 # a fixture


def modes(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): oct(stat.S_IMODE(path.lstat().st_mode))
        for path in [root, *sorted(root.rglob("*"))]
        if not path.is_symlink()
    }


@pytest.fixture
def root(as_nobody: Path) -> Path:  # noqa: F811 # as above
    """A workspace of a user for whom modes count, with read-only inputs."""
    inputs = as_nobody / "inputs"
    inputs.mkdir()
    (inputs / "old.json").write_text("old")
    inputs.chmod(0o555)
    return as_nobody


def test_the_inputs_stay_read_only(root: Path) -> None:
    """The file is there, also where directories are missing; every mode is as before, and no other name is left."""
    stage(root, "inputs/deep/er/new.json", b"new" * 100_000)
    stage(root, "inputs/old.json", b"new")
    assert (root / "inputs" / "deep" / "er" / "new.json").read_bytes() == b"new" * 100_000
    assert (root / "inputs" / "old.json").read_bytes() == b"new"
    assert modes(root / "inputs") == {
        ".": "0o555",
        "deep": "0o555",
        "deep/er": "0o555",
        "deep/er/new.json": "0o444",
        "old.json": "0o444",
    }


def test_a_link_at_the_place_is_replaced(root: Path) -> None:
    """What stands there is not written through: a link's target stays what it was."""
    (root / "elsewhere").write_text("mine")
    (root / "link").symlink_to(root / "elsewhere")
    stage(root, "link", b"new")
    assert (root / "elsewhere").read_text() == "mine"
    assert not (root / "link").is_symlink()
    assert (root / "link").read_bytes() == b"new"


@pytest.mark.parametrize("location", ["away/x", "file/x", "inputs"])
def test_no_way_leads_elsewhere(root: Path, location: str) -> None:
    """A link or a file on the way, and a directory in the place, are errors; nothing is written or left."""
    (root / "target").mkdir()
    (root / "away").symlink_to("target")
    (root / "file").touch()
    with pytest.raises(OSError, match=r"directory|Too many levels"):
        stage(root, location, b"new")
    assert list((root / "target").iterdir()) == []
    assert sorted(os.listdir(root)) == ["away", "file", "inputs", "target"]


def test_a_leftover_of_an_earlier_time(root: Path) -> None:
    """A temporary file that a killed driver left is no hindrance, and no link to write through."""
    (root / "elsewhere").write_text("mine")
    (root / ".staged.partial").symlink_to("elsewhere")
    stage(root, "x.json", b"new")
    assert (root / "elsewhere").read_text() == "mine"
    assert sorted(os.listdir(root)) == ["elsewhere", "inputs", "x.json"]
