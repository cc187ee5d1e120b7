"""What other programs pack comes out of the driver as it went in.

Those that are seldom installed packed the sample once: their archives are in `recorded/`, with what made them.
"""

import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from driver.layout import Layout
from driver.workspace.extract import Extractor
from driver.workspace.tar_reader import TarLimits
from tests.driver.workspace.archives import tree, with_writable
from tests.driver.workspace.sample import FITS_USTAR, PLAIN_USTAR, RUN, SAMPLE, lay

Content = dict[str, bytes | None]
Pack = Callable[[Path], bytes]

RECORDED = Path(__file__).parent / "recorded"


def program(*command: str) -> Pack:
    """A command that writes the archive of the directory where it runs to its output."""

    def pack(root: Path) -> bytes:
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed")
        return subprocess.run(command, cwd=root, capture_output=True, check=True).stdout

    return pack


def python(form: int) -> Pack:
    def pack(root: Path) -> bytes:
        into = BytesIO()
        with tarfile.open(fileobj=into, mode="w", format=form) as archive:
            archive.add(root, ".")
        return into.getvalue()

    return pack


def git(root: Path) -> bytes:
    """git packs no directory without a file."""
    repository = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*repository, *command], cwd=root, check=True)
    return subprocess.run([*repository, "archive", "HEAD"], cwd=root, capture_output=True, check=True).stdout


WITHOUT_EMPTY: Content = {name: content for name, content in SAMPLE.items() if name != "empty"}

WRITERS: dict[str, tuple[Pack, Content]] = {
    "python ustar": (python(tarfile.USTAR_FORMAT), FITS_USTAR),
    "python gnu": (python(tarfile.GNU_FORMAT), SAMPLE),
    "python pax": (python(tarfile.PAX_FORMAT), SAMPLE),
    "tar ustar": (program("tar", "--format=ustar", "-c", "."), FITS_USTAR),
    "tar gnu": (program("tar", "--format=gnu", "-c", "."), SAMPLE),
    "tar oldgnu": (program("tar", "--format=oldgnu", "-c", "."), SAMPLE),
    "tar pax": (program("tar", "--format=pax", "-c", "."), SAMPLE),
    "bsdtar ustar": (program("bsdtar", "--format=ustar", "-c", "."), FITS_USTAR),
    "bsdtar gnu": (program("bsdtar", "--format=gnutar", "-c", "."), SAMPLE),
    "bsdtar pax": (program("bsdtar", "--format=pax", "-c", "."), SAMPLE),
    "bsdtar restricted pax": (program("bsdtar", "-c", "."), SAMPLE),
    "busybox": (program("busybox", "tar", "-c", "."), SAMPLE),
    "git": (git, WITHOUT_EMPTY),
}


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    root = tmp_path / "sample"
    root.mkdir()
    return root


def unpack(layout: Layout, archive: bytes) -> None:
    extractor = Extractor(layout, TarLimits(bytes=len(archive)))
    try:
        for at in range(0, len(archive), 10_000):
            extractor.feed(archive[at : at + 10_000])
        extractor.publish()
    finally:
        extractor.close()


def executables(root: Path) -> list[str]:
    return [path.name for path in root.rglob("*") if path.is_file() and path.stat().st_mode & 0o111]


@pytest.mark.parametrize(("pack", "content"), WRITERS.values(), ids=WRITERS.keys())
def test_what_a_writer_packs(layout: Layout, sample: Path, pack: Pack, content: Content) -> None:
    """Long names, names beyond ASCII, empty files and directories, and the execute bit survive each writer's format."""
    lay(sample, content)
    unpack(layout, pack(sample))
    assert tree(layout.root) == with_writable(content)
    assert executables(layout.root) == [RUN]


@pytest.mark.parametrize(
    ("archive", "content"),
    [
        ("go-ustar.tar", PLAIN_USTAR),
        ("go-gnu.tar", SAMPLE),
        ("go-pax.tar", SAMPLE),
        ("java-gnu.tar", SAMPLE),
        ("java-posix.tar", SAMPLE),
    ],
)
def test_what_a_writer_packed(layout: Layout, archive: str, content: Content) -> None:
    """The same for archive/tar of Go 1.19 and for Apache Commons Compress 1.22."""
    unpack(layout, (RECORDED / archive).read_bytes())
    assert tree(layout.root) == with_writable(content)
    assert executables(layout.root) == [RUN]


BYTES = b"\xff\xfe, which is no text"


@pytest.mark.parametrize("writer", list(WRITERS))
def test_a_name_that_is_no_text(layout: Layout, sample: Path, writer: str) -> None:
    """A name is bytes to every writer that can say so."""
    (sample / os.fsdecode(BYTES)).write_bytes(b"content")
    unpack(layout, WRITERS[writer][0](sample))
    assert tree(layout.root) == with_writable({os.fsdecode(BYTES): b"content"})
