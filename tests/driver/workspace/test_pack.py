"""Packing `out/`: the same bytes for the same content, and every rule by name."""

import os
import socket
import subprocess
import tarfile
from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from driver.errors import PackagingError
from driver.layout import Layout
from driver.workspace.pack import Packed, pack
from tests.driver.workspace.archives import END, tree


@pytest.fixture
def out(layout: Layout) -> Path:
    """An empty `out/`."""
    layout.out.mkdir()
    return layout.out


def packed(out: Path) -> tuple[bytes, Packed]:
    """The archive of `out`, and what `pack` says about it."""
    buffer = BytesIO()
    result = pack(out, buffer)
    return buffer.getvalue(), result


def names_in(archive: bytes) -> list[str]:
    """The names of the entries, as Python reads them."""
    with tarfile.open(fileobj=BytesIO(archive)) as opened:
        return opened.getnames()


def test_the_bytes_are_fixed(out: Path, tmp_path: Path) -> None:
    """Order, owner, mode and time of the files do not matter: the digest is that of the content."""
    (out / "b").mkdir(mode=0o700)
    (out / "b" / "two").write_text("2")
    (out / "b.txt").write_text("0")
    (out / "a").write_text("1")
    archive, result = packed(out)
    os.utime(out / "a", (1, 1))
    (out / "b" / "two").chmod(0o755)
    assert packed(out)[0] == archive
    assert names_in(archive) == ["out", "out/a", "out/b.txt", "out/b", "out/b/two"]
    assert result == Packed(size=len(archive), digest=sha256(archive).digest(), entries=4)
    assert result.digest.hex() == "9b42364f67f165209c6573867b5c39b91b49443257096a3e13913e2f3aff990b"
    assert result.digest_field.startswith("sha-256=:")
    assert result.digest_field.endswith("=:")


def test_a_missing_directory_is_an_empty_one(layout: Layout) -> None:
    """Nothing at all is packed as `out/` alone."""
    archive, result = packed(layout.out)
    assert result.entries == 0
    assert names_in(archive) == ["out"]
    assert (archive[:100].rstrip(b"\0"), archive[512:]) == (b"out/", END)
    layout.out.mkdir()
    assert packed(layout.out)[0] == archive


def test_other_tools_read_it(out: Path, tmp_path: Path) -> None:
    """GNU tar and Python unpack the same tree, and find the fixed owner, mode and time."""
    (out / "deep" / "er").mkdir(parents=True)
    (out / "deep" / "er" / "file").write_bytes(b"x" * 1000)
    (out / "with space.json").write_bytes(b"{}")
    (out / ("n" * 96)).touch()
    into = tmp_path / "result.tar"
    into.write_bytes(packed(out)[0])
    (tmp_path / "gnu").mkdir()
    subprocess.run(["tar", "-x", "-f", into, "-C", tmp_path / "gnu"], check=True)
    assert tree(tmp_path / "gnu" / "out") == tree(out)
    with tarfile.open(into) as archive:
        assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in archive} == {(0, 0, "", "", 0)}
        assert {m.mode for m in archive if m.isfile()} == {0o644}
        assert {m.mode for m in archive if m.isdir()} == {0o755}
        assert not any(m.pax_headers for m in archive)
    assert into.read_bytes()[257:265] == b"ustar\x0000"


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(f"/proc/self/cwd/{path.name}" if len(str(path)) > 100 else str(path))


def _nested(path: Path) -> None:
    (path / ("d" * 48)).mkdir(parents=True)
    (path / ("d" * 48) / ("f" * 50)).touch()


def _sized(size: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.touch()
        os.truncate(path, size)

    return make


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "symbolic link": (lambda path: path.symlink_to("/etc/passwd"), "'out/x': only files and .* a symbolic link"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), "'out/x': only files and .* a symbolic link"),
    "fifo": (os.mkfifo, "'out/x': only files and directories are packed, this is a fifo"),
    "socket": (_socket, "'out/x': only files and directories are packed, this is a socket"),
    "large file": (_sized(10 * 1024 * 1024 + 1), "'out/x': a file has at most 10,485,760 bytes, .* 10,485,761"),
    "long name": (lambda path: path.with_name("n" * 97).touch(), "at most 100 bytes, `out/` .* has 101"),
    "long directory": (lambda path: path.with_name("n" * 96).mkdir(), "at most 100 bytes, `out/` .* has 101"),
    "long path": (_nested, "at most 100 bytes"),
    "not ASCII": (lambda path: path.with_name("ü").touch(), "'out/ü': a name must be printable ASCII"),
    "no text": (lambda path: open(os.fsencode(path) + b"\xff", "w").close(), "a name must be printable ASCII"),
    "control": (lambda path: path.with_name("a\nb").touch(), r"'out/a\\nb': a name must be printable ASCII"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses(out: Path, make: Callable[[Path], object], message: str) -> None:
    """What may not go out is named with its rule."""
    make(out / "x")
    with pytest.raises(PackagingError, match=message):
        packed(out)


def test_the_bounds_themselves_pass(out: Path) -> None:
    """A file of 10 MiB, 50 MiB in all, a name of 100 bytes: exactly that is allowed, one byte more is not."""
    for number in range(5):
        _sized(10 * 1024 * 1024)(out / str(number))
    (out / ("n" * 96)).touch()
    archive, _ = packed(out)
    assert len(archive) == 512 + 5 * (512 + 10 * 1024 * 1024) + 512 + 1024
    (out / "one").write_text("1")
    with pytest.raises(PackagingError, match="'out/one': at most 52,428,800 bytes are packed in all"):
        packed(out)


def test_at_most_ten_thousand_entries(out: Path) -> None:
    """Files and directories count, `out/` itself does not."""
    (out / "d").mkdir()
    (out / "d" / "0").touch()
    for number in range(1, 9_999):
        os.link(out / "d" / "0", out / "d" / str(number))
    assert packed(out)[1].entries == 10_000
    (out / "d" / "more").touch()
    with pytest.raises(PackagingError, match="at most 10,000 entries are packed"):
        packed(out)


def test_out_itself_may_be_no_link(layout: Layout) -> None:
    """A link or a file in the place of `out/` is refused."""
    layout.out.symlink_to("/etc")
    with pytest.raises(PackagingError, match="'out/': it must be a directory"):
        packed(layout.out)
    layout.out.unlink()
    layout.out.touch()
    with pytest.raises(PackagingError, match="'out/': it must be a directory"):
        packed(layout.out)


def test_a_file_that_cannot_be_read(as_nobody: Path) -> None:
    """It is named, not left out."""
    (as_nobody / "secret").touch(0o000)
    with pytest.raises(PackagingError, match=r"'out/secret': it cannot be read \(Permission denied\)"):
        packed(as_nobody)


class _Meddler(BytesIO):
    """An archive that changes what is being packed as soon as a part of it arrives."""

    def __init__(self, at: bytes, change: Callable[[], object]) -> None:
        super().__init__()
        self._at = at
        self._change = change

    def write(self, data: Any) -> int:
        if bytes(data).startswith(self._at):
            self._change()
        return super().write(data)


def test_a_file_that_changes_while_it_is_read(out: Path) -> None:
    """A file that grows or shrinks under the reader's hands fails the packing."""
    (out / "x").write_bytes(b"x" * 1_000_000)
    for change in (lambda: os.truncate(out / "x", 10), lambda: os.truncate(out / "x", 2_000_000)):
        (out / "x").write_bytes(b"x" * 1_000_000)
        with pytest.raises(PackagingError, match=r"'out/x': .* changed its size while it was read"):
            pack(out, _Meddler(b"out/x\0", change))


def test_a_file_that_is_replaced_while_packing(out: Path, tmp_path: Path) -> None:
    """What was listed is what is packed: no link, no fifo and no other file takes its place."""
    (tmp_path / "outside").write_text("secret")

    def swap(make: Callable[[Path], object]) -> Callable[[], object]:
        def change() -> None:
            (out / "b").rename(out.with_name("moved"))
            make(out / "b")

        return change

    def link(path: Path) -> None:
        path.symlink_to(tmp_path / "outside")

    for make, message in ((link, "cannot be read"), (os.mkfifo, "was replaced"), (Path.mkdir, "was replaced")):
        (out / "a").write_text("a")
        (out / "b").write_text("b")
        with pytest.raises(PackagingError, match=f"'out/b': it {message}"):
            pack(out, _Meddler(b"out/a\0", swap(make)))
        (out / "b").rmdir() if make is Path.mkdir else (out / "b").unlink()


@pytest.mark.parametrize("there", ["nothing", "file", "link", "directory"])
def test_what_is_added_takes_the_place_of_what_is_there(out: Path, there: str) -> None:
    """A file that is added is in the archive, in its order, whatever has its name; nothing is written into `out/`."""
    (out / "a").write_text("a")
    (out / "z").write_text("z")
    if there == "file":
        (out / "own").write_text("a lie")
    elif there == "link":
        (out / "own").symlink_to("a")
    elif there == "directory":
        (out / "own").mkdir()
        (out / "own" / "deep").touch()
    before = tree(out)
    into = BytesIO()
    assert pack(out, into, added={b"own": b"ours"}).entries == 3
    assert names_in(into.getvalue()) == ["out", "out/a", "out/own", "out/z"]
    with tarfile.open(fileobj=BytesIO(into.getvalue())) as archive:
        reader = archive.extractfile("out/own")
        assert reader is not None
        assert reader.read() == b"ours"
    assert tree(out) == before


def test_added_without_a_directory(layout: Layout) -> None:
    """Where there is no `out/` at all, what is added is still packed."""
    into = BytesIO()
    assert pack(layout.out, into, added={b"own": b"x" * 513}).entries == 1
    assert names_in(into.getvalue()) == ["out", "out/own"]
    assert len(into.getvalue()) == 512 * (1 + 1 + 2 + 2)


def test_a_full_disk_is_told(out: Path) -> None:
    """An archive that cannot be written fails with the system's reason."""
    (out / "x").write_bytes(bytes(100_000))
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(PackagingError, match="No space left on device"):
        pack(out, full)
