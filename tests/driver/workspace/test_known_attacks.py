"""Archives that got past the filters of CPython's tarfile, made here: each is refused, and nothing outside changes.

Told by python/cpython's issues 127987, 112887, 135034, 130577, 149486, 151558, 155999 and 157190. Where this
interpreter still has those holes, it is shown that the archives go through them, so that they are what they are called.
"""

import os
import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

import pytest

from driver.errors import ArchiveRefused
from driver.gateway.wire import Runtime
from driver.layout import Layout
from tests.driver.workspace.archives import END, block, file, padded, pax, record
from tests.driver.workspace.source import Answer
from tests.driver.workspace.test_fetch import field
from tests.driver.workspace.test_prepare import Case

Member = tuple[str, bytes, str, bytes]
Harm = Callable[[Path], bool]
"""Whether something was done to the file `beside` the directory `workspace`."""

LONG_AGO = 500_000_000


def plain(name: str, data: bytes = b"") -> Member:
    return name, tarfile.REGTYPE, "", data


def folder(name: str) -> Member:
    return name, tarfile.DIRTYPE, "", b""


def link(name: str, target: str) -> Member:
    return name, tarfile.SYMTYPE, target, b""


def hard(name: str, target: str) -> Member:
    return name, tarfile.LNKTYPE, target, b""


def packed(*members: Member) -> bytes:
    """An archive of these members as Python writes it."""
    into = BytesIO()
    with tarfile.open(fileobj=into, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, target, data in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size, info.mode, info.mtime = kind, target, len(data), 0o777, 1
            archive.addfile(info, BytesIO(data))
    return into.getvalue()


def beyond_the_longest_path() -> list[Member]:
    """A link that is short to follow and too long to resolve, since each step of it stands for a long name."""
    name = "d" * 247
    steps = "abcdefghijklmnop"
    members = [
        member
        for depth, step in enumerate(steps)
        for member in (folder(f"{name}/" * depth + name), link(f"{name}/" * depth + step, name))
    ]
    last = "/".join(steps) + "/" + "l" * 254
    return [*members, link(last, "../" * len(steps)), link("way-out", f"{last}/.."), plain("way-out/beside", b"lost")]


def is_touched(parent: Path) -> bool:
    return (parent / "beside").stat().st_mtime != LONG_AGO


def is_overwritten(parent: Path) -> bool:
    return (parent / "beside").read_bytes() != b"kept"


def is_within_reach(parent: Path) -> bool:
    """Whether a link below the workspace leads to what is beside it."""
    below = (parent / "workspace").iterdir()
    return any(path.is_symlink() and os.path.realpath(path) == str(parent / "beside") for path in below)


def has_a_neighbour(parent: Path) -> bool:
    return sorted(os.listdir(parent)) != ["beside", "workspace"]


@dataclass(frozen=True)
class Attack:
    """An archive, the entry that it is refused for here, and what comes of it in a tarfile that lets it through."""

    archive: bytes
    refused: str
    harm: Harm
    errorlevel: Literal[0, 1] = 1


ATTACKS = {
    # A directory's time and mode are set last; meanwhile its name has become a link that leads outside.
    "CVE-2024-12718": Attack(
        packed(link("a/pwn", "."), folder("a/pwn"), link("a/pwn", "x/../beside"), link("a/x", "../")),
        "'a/pwn': symbolic links are refused",
        is_touched,
    ),
    # The target is checked while `here` does not exist; once it is the directory itself, `..` leads outside.
    "CVE-2025-4138": Attack(
        packed(link("escape", "here/../beside"), link("here", "./")),
        "'escape': symbolic links are refused",
        is_within_reach,
    ),
    # A hard link to what is not there any more is made from the archive's member, which was checked for another place.
    "CVE-2025-4330": Attack(
        packed(plain("a/x"), folder("b"), link("c", "a"), link("c/s", "../beside"), link("c", "b"), hard("h", "c/s")),
        "'c': symbolic links are refused",
        is_within_reach,
    ),
    # Resolving gives up on a path that is too long, and takes the rest of it literally; the kernel does not.
    "CVE-2025-4517": Attack(packed(*beyond_the_longest_path()), "record 'linkpath' is refused", is_overwritten),
    # Where errors are to be logged only, the member that the filter refused was extracted all the same.
    "CVE-2025-4435": Attack(
        packed(plain("../beside", b"lost")), r"'\.\./beside': `\.\.` is refused", is_overwritten, errorlevel=0
    ),
    # A hard link to a link that leads nowhere yet: the link is made anew at another depth, where it leads outside.
    "gh-151558": Attack(
        packed(link("a/s", "../beside"), hard("h", "a/s")), "'a/s': symbolic links are refused", is_within_reach
    ),
    # A hard link to a link is the same link at another depth; its time and mode are then set through it.
    "gh-157190": Attack(
        packed(plain("beside"), link("a/s", "../beside"), hard("h", "a/s")),
        "'a/s': symbolic links are refused",
        is_touched,
    ),
    # The name ends inside, and directories are made on the way there.
    "gh-155999": Attack(
        packed(plain("../evil/../workspace/a/x")), r"'\.\./evil/\.\./workspace/a/x': `\.\.` is", has_a_neighbour
    ),
}


def surroundings(parent: Path) -> tuple[list[str], bytes, int, int, float]:
    status = (parent / "beside").lstat()
    return (
        sorted(os.listdir(parent)),
        (parent / "beside").read_bytes(),
        status.st_mode,
        status.st_nlink,
        status.st_mtime,
    )


def lay_out(parent: Path) -> None:
    (parent / "workspace").mkdir(exist_ok=True)
    (parent / "beside").write_bytes(b"kept")
    os.utime(parent / "beside", (LONG_AGO, LONG_AGO))


async def refusal_of(archive: bytes, layout: Layout) -> str:
    """Why the driver refuses it; the workspace is empty then, and what is beside it as it was."""

    async def runtime() -> Runtime:
        return Runtime(
            contract=1, workspace_bytes=1_000_000, workspace_digest=field(archive), result_bytes=1, upload_seconds=1
        )

    lay_out(layout.root.parent)
    before = surroundings(layout.root.parent)
    with pytest.raises(ArchiveRefused) as caught:
        await Case(layout, Answer(archive), runtime=runtime).workspace.prepare()
    assert os.listdir(layout.root) == []
    assert surroundings(layout.root.parent) == before
    return str(caught.value)


@pytest.mark.anyio
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
async def test_is_refused(layout: Layout, attack: Attack) -> None:
    """A known attack ends at its first entry that is no file or has `..` in its name, and leaves no trace."""
    assert re.search(attack.refused, await refusal_of(attack.archive, layout))


# The constant came with the mending of the first five of them.
has_the_holes = pytest.mark.skipif(
    not hasattr(tarfile, "data_filter") or hasattr(os.path, "ALLOW_MISSING"),
    reason="this interpreter has no filter, or one without these holes",
)


@has_the_holes
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_is_an_attack(layout: Layout, attack: Attack) -> None:
    """What comes of it where tarfile's own filter is all there is."""
    parent = layout.root.parent
    lay_out(parent)
    with tarfile.open(fileobj=BytesIO(attack.archive)) as archive:
        archive.errorlevel = attack.errorlevel
        archive.extractall(layout.root, filter="data")
    assert attack.harm(parent)


BACKWARDS = {
    "base 256": block(b"x", size_field=(-512).to_bytes(12, "big", signed=True), magic=b"ustar  \0"),
    "pax": pax(record(b"size", b"-1536")) + block(b"x"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("entry", BACKWARDS.values(), ids=BACKWARDS.keys())
async def test_no_size_leads_backwards(layout: Layout, entry: bytes) -> None:
    """CVE-2025-8194: after an entry of negative size tarfile reads the same headers again, without end."""
    refusal = await refusal_of(file(b"a") + entry + END, layout)
    assert "negative (-512)" in refusal or "must be a decimal number" in refusal


@has_the_holes
@pytest.mark.parametrize("entry", BACKWARDS.values(), ids=BACKWARDS.keys())
def test_a_negative_size_is_an_attack(entry: bytes) -> None:
    """An archive of two entries has more of them than anybody waits for."""
    with tarfile.open(fileobj=BytesIO(file(b"a") + entry + END)) as archive:
        assert all(archive.next() is not None for _ in range(100))


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [b"2", b"0", b"5"])
async def test_an_empty_name_names_nothing(layout: Layout, kind: bytes) -> None:
    """gh-149486: a chain of links without a name led outside; no entry goes without one."""
    refusal = await refusal_of(block(b"", kind, link=b"..") + END, layout)
    assert "links are refused" in refusal or "an entry must have a name" in refusal


@pytest.mark.anyio
async def test_a_long_link_before_a_file_is_refused(layout: Layout) -> None:
    """The headers that lengthen a link's target are refused by themselves, whatever they stand before."""
    assert "long names of links" in await refusal_of(
        block(b"l", b"K", size=3) + padded(b"../") + file(b"x") + END, layout
    )
    assert "'linkpath' is refused" in await refusal_of(pax(record(b"linkpath", b"../x")) + file(b"x") + END, layout)
