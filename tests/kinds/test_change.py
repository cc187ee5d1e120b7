"""The change view of real repositories."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from driver.errors import KindFailed
from kinds.change import derive_change
from kinds.changed import Totals
from tests.kinds.review_case import commit, git
from tests.kinds.reviewed import ENVELOPE_READ, Reviewed

pytestmark = pytest.mark.anyio


@pytest.fixture
def reviewed(tmp_path: Path) -> Reviewed:
    return Reviewed(tmp_path)


def lines(count: int) -> bytes:
    return b"".join(b"line %d\n" % n for n in range(1, count + 1))


async def test_an_edit(reviewed: Reviewed) -> None:
    """One changed line: the three files of the view, the totals and the event."""
    reviewed.write("dir/a.txt", lines(20))
    base = commit(reviewed.repository)
    reviewed.write("dir/a.txt", lines(20).replace(b"line 10\n", b"ten\nand more\n"))
    assert await reviewed.derive(base, commit(reviewed.repository)) == Totals(files=1, added=2, deleted=1)
    assert reviewed.files == [
        {"path": "dir/a.txt", "status": "modified", "added": 2, "deleted": 1, "binary": False, "hunks": [[7, 14]]}
    ]
    assert b"\n[L9]  line 9\n[L-] -line 10\n[L10] +ten\n[L11] +and more\n[L12]  line 11\n" in reviewed.patch
    assert b"dir/a.txt | 3 ++-\n" in (reviewed.view / "diff_stat.txt").read_bytes()
    assert sorted(os.listdir(reviewed.view)) == ["diff.patch", "diff_stat.txt", "files.json"]
    assert os.listdir(reviewed.view.parent) == ["change"]
    assert reviewed.case.sink.events("change.") == [{"event": "change.derived", "files": 1, "added": 2, "deleted": 1}]


async def test_additions_deletions_and_renames(reviewed: Reviewed) -> None:
    """Each file has its status; a rename is found although the file was edited."""
    reviewed.write("gone", b"x\n" * 3)
    reviewed.write("old name", lines(30))
    base = commit(reviewed.repository)
    (reviewed.repository / "gone").unlink()
    (reviewed.repository / "old name").unlink()
    reviewed.write("new", lines(2))
    reviewed.write("new name", lines(30) + b"end\n")
    reviewed.write("empty", b"")
    await reviewed.derive(base, commit(reviewed.repository))
    rest = {"binary": False}
    assert reviewed.files == [
        {"path": "empty", "status": "added", "added": 0, "deleted": 0, "hunks": [], **rest},
        {"path": "gone", "status": "deleted", "added": 0, "deleted": 3, "hunks": [], **rest},
        {"path": "new", "status": "added", "added": 2, "deleted": 0, "hunks": [[1, 2]], **rest},
        {
            "path": "new name",
            "oldPath": "old name",
            "status": "renamed",
            "added": 1,
            "deleted": 0,
            "hunks": [[28, 31]],
            **rest,
        },
    ]


async def test_binary_files_and_modes(reviewed: Reviewed) -> None:
    """A binary file and a changed mode have no lines, and do not shift what follows them."""
    reviewed.write("binary", b"\0\1\2")
    reviewed.write("mode", lines(3))
    reviewed.write("text", b"a\n")
    base = commit(reviewed.repository)
    reviewed.write("binary", b"\0\1\3")
    (reviewed.repository / "mode").chmod(0o755)
    reviewed.write("text", b"b\n")
    assert await reviewed.derive(base, commit(reviewed.repository)) == Totals(files=3, added=1, deleted=1)
    assert [(f["path"], f["binary"], f["hunks"]) for f in reviewed.files] == [
        ("binary", True, []),
        ("mode", False, []),
        ("text", False, [[1, 1]]),
    ]
    assert b"old mode 100644\nnew mode 100755\n" in reviewed.patch


async def test_line_ends(reviewed: Reviewed) -> None:
    """CR LF stays as it is, a lone CR ends no line, and a missing line feed is told."""
    reviewed.write("crlf", b"a\r\nb\r\n")
    reviewed.write("cr", b"a\rb\rc")
    base = commit(reviewed.repository)
    reviewed.write("crlf", b"a\r\nB\r\n")
    reviewed.write("cr", b"a\rb\rC")
    await reviewed.derive(base, commit(reviewed.repository))
    assert b"[L1]  a\r\n[L-] -b\r\n[L2] +B\r\n" in reviewed.patch
    assert (
        b"[L-] -a\rb\rc\n\\ No newline at end of file\n[L1] +a\rb\rC\n\\ No newline at end of file\n" in reviewed.patch
    )


NAMES = [
    "a -> b",
    "a => b",
    "back\\slash",
    "café/日本語.txt",
    'quo"te',
    "new\nline",
    "diff --git a/x b/x",
    "tab\tname",
    " space ",
    "-dash",
    ":colon",
    "1\t2\tname",
    "{a => b}",
]


async def test_names_of_all_kinds(reviewed: Reviewed) -> None:
    """A name may hold what looks like syntax; each file keeps its own lines."""
    for place, name in enumerate(NAMES, 1):
        reviewed.write(name, b"x\n" * place)
    base = commit(reviewed.repository)
    for place, name in enumerate(NAMES, 1):
        reviewed.write(name, b"x\n" * place + b"y\n")
    await reviewed.derive(base, commit(reviewed.repository))
    seen = {f["path"]: f["hunks"][0][1] for f in reviewed.files}
    assert seen == {name: place + 1 for place, name in enumerate(NAMES, 1)}


async def test_renames_between_odd_names(reviewed: Reviewed) -> None:
    """Old and new name are both kept, whatever they hold."""
    reviewed.write("old\n:100644\tx", lines(9))
    base = commit(reviewed.repository)
    (reviewed.repository / "old\n:100644\tx").unlink()
    reviewed.write("new => \x01", lines(9))
    await reviewed.derive(base, commit(reviewed.repository))
    assert [(f["status"], f["oldPath"], f["path"]) for f in reviewed.files] == [
        ("renamed", "old\n:100644\tx", "new => \x01")
    ]


async def test_a_name_that_is_no_utf8(reviewed: Reviewed) -> None:
    """It can be read and written as JSON by anybody, and does not disturb the rest."""
    base = commit(reviewed.repository)
    reviewed.write(b"caf\xe9", b"x\n")
    await reviewed.derive(base, commit(reviewed.repository))
    assert [f["path"] for f in reviewed.files] == ["caf\\xe9"]
    assert b"+++ b/caf\xe9\n" in reviewed.patch


async def test_a_file_that_becomes_a_link(reviewed: Reviewed) -> None:
    """Git prints it twice; it is one file here, and the next one has its own lines."""
    reviewed.write("a", b"x\ny\n")
    reviewed.write("b", b"x\n")
    base = commit(reviewed.repository)
    (reviewed.repository / "a").unlink()
    (reviewed.repository / "a").symlink_to("b")
    reviewed.write("b", b"y\n")
    await reviewed.derive(base, commit(reviewed.repository))
    assert [(f["path"], f["status"], f["hunks"]) for f in reviewed.files] == [
        ("a", "type_changed", [[1, 1]]),
        ("b", "modified", [[1, 1]]),
    ]


async def test_submodules(reviewed: Reviewed) -> None:
    """A submodule that moved, and a file that became one, have no lines to cite."""
    commits = [git(reviewed.repository, "hash-object", "-w", "--stdin", given=text) for text in (b"1", b"2")]
    reviewed.write("file", b"x\n")

    def at(name: str, number: int) -> None:
        git(reviewed.repository, "update-index", "--add", "--cacheinfo", f"160000,{commits[number]},{name}")

    git(reviewed.repository, "add", "file")
    at("sub", 0)
    git(reviewed.repository, "commit", "--quiet", "--message", "x")
    base = git(reviewed.repository, "rev-parse", "HEAD")
    at("sub", 1)
    at("file", 1)
    git(reviewed.repository, "commit", "--quiet", "--message", "x")
    await reviewed.derive(base, git(reviewed.repository, "rev-parse", "HEAD"))
    assert [(f["path"], f["status"], f["hunks"]) for f in reviewed.files] == [
        ("file", "type_changed", []),
        ("sub", "modified", []),
    ]
    assert b"[L-] +Subproject commit " + commits[1].encode() in reviewed.patch
    assert b"[L1]" not in reviewed.patch


async def test_attributes_hide_nothing(reviewed: Reviewed) -> None:
    """A change cannot take itself out of the view by .gitattributes or .git/info/attributes."""
    reviewed.write(".gitattributes", b"* -diff -text binary\n")
    reviewed.write("a", b"a\n")
    reviewed.write(".git/info/attributes", b"* -diff\n")
    base = commit(reviewed.repository)
    reviewed.write("a", b"b\n")
    await reviewed.derive(base, commit(reviewed.repository))
    assert b"[L-] -a\n[L1] +b\n" in reviewed.patch


async def test_no_difference(reviewed: Reviewed) -> None:
    """Two commits with the same files have an empty view, because git says so."""
    reviewed.write("a", b"a\n")
    base = commit(reviewed.repository)
    head = commit(reviewed.repository)
    assert await reviewed.derive(base, head) == Totals(0, 0, 0)
    assert reviewed.files == []
    assert reviewed.patch == b""


async def test_a_repository_of_sha256(reviewed: Reviewed) -> None:
    """The longer commit names work too."""
    shutil.rmtree(reviewed.repository / ".git")
    git(reviewed.repository, "init", "--quiet", "--object-format=sha256")
    reviewed.write("a", b"a\n")
    base = commit(reviewed.repository)
    reviewed.write("a", b"b\n")
    assert await reviewed.derive(base, commit(reviewed.repository)) == Totals(1, 1, 1)


async def test_many_files(reviewed: Reviewed) -> None:
    """Thousands of files and a packed repository."""
    for n in range(3000):
        reviewed.write(f"d{n % 50}/f{n}", b"a\n" * (n % 7))
    base = commit(reviewed.repository)
    for n in range(3000):
        reviewed.write(f"d{n % 50}/f{n}", b"a\n" * (n % 7) + b"b\n")
    head = commit(reviewed.repository)
    git(reviewed.repository, "gc", "--quiet")
    assert await reviewed.derive(base, head) == Totals(3000, 3000, 0)
    assert len(reviewed.files) == 3000


async def test_an_old_view_is_replaced(reviewed: Reviewed) -> None:
    """What lies in its place, a link even, is gone, and nothing behind a link was touched."""
    reviewed.write("a", b"a\n")
    base = commit(reviewed.repository)
    reviewed.view.mkdir(parents=True)
    (reviewed.view / "diff.patch").write_text("old")
    (reviewed.view / "extra").symlink_to(reviewed.repository)
    await reviewed.derive(base, base)
    assert sorted(os.listdir(reviewed.view)) == ["diff.patch", "diff_stat.txt", "files.json"]
    assert (reviewed.repository / "a").exists()


async def fails(reviewed: Reviewed, base: str, head: str) -> str:
    """The reason of a view that could not be derived; the exit is 2 and no view is left."""
    with pytest.raises(KindFailed) as failure:
        await reviewed.derive(base, head)
    assert failure.value.exit == 2
    assert not reviewed.view.exists()
    return failure.value.reason


async def test_a_commit_that_is_not_there(reviewed: Reviewed) -> None:
    """A missing base is named; so is a name that is no commit."""
    reviewed.write("a", b"a\n")
    head = commit(reviewed.repository)
    tree = git(reviewed.repository, "rev-parse", "HEAD^{tree}")
    assert f"the base commit {'0' * 40} cannot be read" in await fails(reviewed, "0" * 40, head)
    assert f"the head commit {tree} cannot be read" in await fails(reviewed, head, tree)


async def test_a_missing_object(reviewed: Reviewed) -> None:
    """A repository without a file's content fails the view instead of thinning it."""
    reviewed.write("a", b"a\n")
    base = commit(reviewed.repository)
    reviewed.write("a", b"b\n")
    head = commit(reviewed.repository)
    blob = git(reviewed.repository, "rev-parse", "HEAD:a")
    (reviewed.repository / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    assert "git diff-tree failed: exit code 128" in await fails(reviewed, base, head)


@pytest.mark.parametrize("value", ["HEAD", "main", "-h", "", None, 7, "0" * 39, "0" * 41, "A" * 40])
async def test_only_full_commit_names(reviewed: Reviewed, value: Any) -> None:
    """A name that git would have to look up, or take for an option, is refused."""
    assert "baseCommit must be a full commit name" in await fails(reviewed, value, "0" * 40)


async def test_metadata_that_cannot_be_used(reviewed: Reviewed) -> None:
    """Nothing, no JSON, no object and too much are told apart."""
    metadata = reviewed.root / "context" / "metadata.json"
    metadata.parent.mkdir()
    for content, reason in (
        (None, "cannot be read"),
        (b"{", "is not JSON"),
        (b"[]", "baseCommit must be"),
        (b" " * (1 << 20) + b"{}", "is larger than 1,048,576 bytes"),
    ):
        if content is not None:
            metadata.write_bytes(content)
        with pytest.raises(KindFailed, match=f"context/metadata.json:? {reason}"):
            await derive_change(reviewed.case.held(), ENVELOPE_READ)


async def test_a_repository_that_is_none(reviewed: Reviewed) -> None:
    """A `.git` that points elsewhere, by a file or a link, is not followed."""
    real = reviewed.root / "real"
    (reviewed.repository / ".git").rename(real)
    assert "has no directory .git" in await fails(reviewed, "0" * 40, "0" * 40)
    (reviewed.repository / ".git").write_text(f"gitdir: {real}\n")
    assert "has no directory .git" in await fails(reviewed, "0" * 40, "0" * 40)
    (reviewed.repository / ".git").unlink()
    (reviewed.repository / ".git").symlink_to(real)
    assert "has no directory .git" in await fails(reviewed, "0" * 40, "0" * 40)
