"""What is tried with each archive, and what has to hold whatever its bytes are.

The archive is fed to the driver as a download feeds it, whole or in pieces, as its checksum has it, into a workspace in
memory. What the driver makes of it has to be what the plain rules make of it.
"""

import os
import stat
from pathlib import Path
from zlib import crc32

from driver.errors import ArchiveRefused
from driver.layout import Layout
from driver.workspace.empty import empty
from driver.workspace.extract import Extractor
from driver.workspace.tar_reader import TarLimits
from tests.driver.workspace import rules

MOST_BYTES = 12 * 1024
"""The advertised size of every archive here; a longer input is one of the cases."""

KEPT = b"nobody may touch this"


class Place:
    """A workspace with something beside it that has to stay as it is."""

    def __init__(self, parent: Path) -> None:
        self.parent = parent
        self.layout = Layout(parent / "workspace")
        self.layout.root.mkdir()
        self.beside = parent / "beside"
        self.beside.write_bytes(KEPT)
        self._beside = self.beside.stat()
        self._descriptors = len(os.listdir("/proc/self/fd"))

    def try_archive(self, archive: bytes) -> str | None:
        """Unpack, compare and empty again; why it was refused. Raises AssertionError for a promise that was broken."""
        refusal = _unpack(self.layout, archive)
        expected, broken = _by_the_rules(archive)
        if expected is not None:
            assert refusal is None, f"the rules have nothing against it, refused: {refusal}"
            _compare(self.layout, expected)
        else:
            assert refusal is not None, f"unpacked, although the rules say: {broken}"
            assert refusal.isprintable(), "a refusal that cannot be shown"
            assert len(refusal) < 2000, "a refusal without a bound"
            assert set(os.listdir(self.layout.root)) <= {".incoming"}, "a refused archive is in its place"
        empty(self.layout.root)
        assert os.listdir(self.layout.root) == [], "not emptied"
        self._look_beside()
        return refusal

    def _look_beside(self) -> None:
        assert sorted(os.listdir(self.parent)) == ["beside", "workspace"], "something is beside the workspace"
        status = self.beside.lstat()
        assert (status.st_mode, status.st_nlink, status.st_ctime_ns) == (
            self._beside.st_mode,
            self._beside.st_nlink,
            self._beside.st_ctime_ns,
        ), "what is beside the workspace was touched"
        assert len(os.listdir("/proc/self/fd")) <= self._descriptors, "a descriptor was left open"


def _unpack(layout: Layout, archive: bytes) -> str | None:
    draw = crc32(archive)
    step = max(len(archive), 1) if draw % 4 == 0 else 1 + draw % 2000
    extractor = Extractor(layout, TarLimits(bytes=MOST_BYTES))
    try:
        for at in range(0, len(archive), step):
            extractor.feed(archive[at : at + step])
        extractor.publish()
    except ArchiveRefused as error:
        return str(error)
    finally:
        extractor.close()
    return None


def _by_the_rules(archive: bytes) -> tuple[rules.Tree | None, str]:
    try:
        return rules.unpacked(archive, MOST_BYTES), ""
    except rules.Refused as rule:
        return None, str(rule)


def _compare(layout: Layout, expected: rules.Tree) -> None:
    writable = {os.fsencode(path.relative_to(layout.root)) for path in layout.writable}
    found = _found(layout.root, writable)
    assert found == {**expected, **dict.fromkeys(writable)}, f"{found} in place of {expected}"


def _found(root: Path, writable: set[bytes]) -> rules.Tree:
    """What is below a directory; everything in it has to be a file or a directory with the mode of an input."""
    found: rules.Tree = {}
    levels: list[tuple[bytes, ...]] = [()]
    while levels:
        above = levels.pop()
        fd = _opened(root, above)
        for name in map(os.fsencode, os.listdir(fd)):
            path = b"/".join((*above, name))
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            mode = stat.S_IMODE(status.st_mode)
            if stat.S_ISDIR(status.st_mode):
                assert mode == (0o700 if path in writable else 0o555), f"{path!r} has the mode {mode:o}"
                found[path] = None
                levels.append((*above, name))
            else:
                assert stat.S_ISREG(status.st_mode), f"{path!r} is neither a file nor a directory"
                assert status.st_nlink == 1, f"{path!r} has another name"
                assert mode in (0o444, 0o555), f"{path!r} has the mode {mode:o}"
                with open(os.open(name, os.O_RDONLY, dir_fd=fd), "rb") as opened:
                    found[path] = opened.read(), mode == 0o555
        os.close(fd)
    return found


def _opened(root: Path, parts: tuple[bytes, ...]) -> int:
    """A directory that may be deeper than a path may be long."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for part in parts:
        below = os.open(part, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    return fd
