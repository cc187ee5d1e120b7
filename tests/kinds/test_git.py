"""Git on hostile repositories: nothing in them is run, believed or waited for."""

import subprocess
from pathlib import Path

import pytest

from driver.errors import KindFailed
from kinds.annotate import PatchError
from kinds.changed import Totals, derive
from kinds.git import Git, quarantine
from tests.kinds.review_case import GIT_ENVIRONMENT, commit, git, make_case
from tests.kinds.reviewed import Reviewed

pytestmark = pytest.mark.anyio


@pytest.fixture
def reviewed(tmp_path: Path) -> Reviewed:
    return Reviewed(tmp_path)


HOSTILE = """
[core]
    fsmonitor = "touch {marker}; false"
    hooksPath = {hooks}
    pager = touch {marker}
    editor = touch {marker}
    askPass = {hooks}/touch
    sshCommand = touch {marker}
    gitProxy = {hooks}/touch
    alternateRefsCommand = touch {marker}
    worktree = /
    attributesFile = {attributes}
[diff]
    external = {hooks}/touch
[diff "evil"]
    command = {hooks}/touch
    textconv = {hooks}/touch
[filter "evil"]
    clean = touch {marker}
    smudge = touch {marker}
    process = touch {marker}
    required = true
[alias]
    diff-tree = !touch {marker}
    cat-file = !touch {marker}
[pager]
    diff-tree = touch {marker}
    cat-file = touch {marker}
[credential]
    helper = !touch {marker}
[gpg]
    program = {hooks}/touch
[log]
    showSignature = true
[interactive]
    diffFilter = touch {marker}
[uploadpack]
    packObjectsHook = touch {marker}
[extensions]
    partialClone = evil
[remote "evil"]
    promisor = true
    url = ext::touch {marker}
[protocol]
    allow = always
[include]
    path = {included}
"""

HOOKS = ("touch", "post-index-change", "reference-transaction", "fsmonitor-watchman", "post-checkout")


def make_hostile(reviewed: Reviewed, marker: Path) -> None:
    """Everything in the reviewed repository that can name a command names one that makes `marker`."""
    hooks, directory = reviewed.root / "hooks", reviewed.repository / ".git"
    included, attributes = directory / "included", directory / "info" / "attributes"
    for place in (hooks, directory / "hooks"):
        place.mkdir(exist_ok=True)
        for name in HOOKS:
            (place / name).write_text(f"#!/bin/sh\ntouch {marker}\n")
            (place / name).chmod(0o755)
    attributes.write_text("* diff=evil filter=evil\n")
    included.write_text(f'[core]\n\tsshCommand = touch {marker}\n[alias]\n\tdiff-tree = "!touch {marker}"\n')
    text = HOSTILE.format(marker=marker, hooks=hooks, included=included, attributes=attributes)
    with open(directory / "config", "a") as config:
        config.write(text)


async def test_a_hostile_config_runs_nothing(reviewed: Reviewed, tmp_path: Path) -> None:
    """No key of the repository's config, no hook and no attribute makes git run a command."""
    reviewed.write("a", b"a\n")
    base = commit(reviewed.repository)
    reviewed.write("a", b"b\n")
    head = commit(reviewed.repository)
    marker = tmp_path / "marker"
    make_hostile(reviewed, marker)
    assert await reviewed.derive(base, head) == Totals(1, 1, 1)
    assert b"[L-] -a\n[L1] +b\n" in reviewed.patch
    assert not marker.exists()
    # The same repository, read in the plain way: the trap is a real one.
    subprocess.run(
        ["git", "diff", base, head], cwd=reviewed.repository, env=GIT_ENVIRONMENT, capture_output=True, check=False
    )
    assert marker.exists()


async def test_a_missing_object_is_not_fetched(reviewed: Reviewed, tmp_path: Path) -> None:
    """A partial clone whose remote is a command stays without the object, and the command is not run."""
    reviewed.write("a", b"a\n")
    base = commit(reviewed.repository)
    reviewed.write("a", b"b\n")
    head = commit(reviewed.repository)
    blob = git(reviewed.repository, "rev-parse", "HEAD:a")
    (reviewed.repository / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    marker = tmp_path / "marker"
    make_hostile(reviewed, marker)
    with pytest.raises(KindFailed, match="git diff-tree failed"):
        await reviewed.derive(base, head)
    assert not marker.exists()


async def test_a_broken_config_does_not_matter(reviewed: Reviewed) -> None:
    """The repository's own config, HEAD, index and references are never read."""
    reviewed.write("a", b"a\n")
    base = commit(reviewed.repository)
    reviewed.write("a", b"b\n")
    head = commit(reviewed.repository)
    for name in ("config", "HEAD", "index", "packed-refs"):
        (reviewed.repository / ".git" / name).write_bytes(b"\0[broken\n")
    assert await reviewed.derive(base, head) == Totals(1, 1, 1)


async def test_replaced_objects_are_seen_as_they_are(reviewed: Reviewed) -> None:
    """A replacement (git-replace(1)) cannot show another change than the commits hold."""
    reviewed.write("a", b"a\n")
    base = commit(reviewed.repository)
    reviewed.write("a", b"b\n")
    head = commit(reviewed.repository)
    git(reviewed.repository, "replace", head, base)
    assert git(reviewed.repository, "diff", base, head) == ""
    assert await reviewed.derive(base, head) == Totals(1, 1, 1)


async def test_a_lying_commit_graph_is_not_believed(reviewed: Reviewed) -> None:
    """A commit graph (a cache in the object store) that tells another tree changes nothing."""
    reviewed.write("a", b"a\n")
    base = commit(reviewed.repository)
    reviewed.write("a", b"b\n")
    head = commit(reviewed.repository)
    git(reviewed.repository, "commit-graph", "write", "--reachable")
    graph = reviewed.repository / ".git" / "objects" / "info" / "commit-graph"
    trees = [bytes.fromhex(git(reviewed.repository, "rev-parse", f"{name}^{{tree}}")) for name in (base, head)]
    graph.chmod(0o644)
    graph.write_bytes(graph.read_bytes().replace(trees[1], trees[0]))
    assert await reviewed.derive(base, head) == Totals(1, 1, 1)


async def test_a_change_that_is_too_large(reviewed: Reviewed) -> None:
    """The bound on the patch is told, and what was written of it is no view."""
    base = commit(reviewed.repository)
    reviewed.write("large", (b"x" * 1023 + b"\n") * (65 * 1024))
    with pytest.raises(KindFailed) as failure:
        await reviewed.derive(base, commit(reviewed.repository))
    assert failure.value.exit == 2
    assert failure.value.reason == "the change is too large: git diff-tree wrote more than 64 MiB"
    assert not reviewed.view.exists()


async def test_a_machine_without_git(tmp_path: Path) -> None:
    """It is told as that."""
    case = make_case(tmp_path, path="/nonexistent")
    objects = tmp_path / "repository" / ".git" / "objects"
    objects.mkdir(parents=True)
    program = quarantine(case.programs, objects.parent.parent, case.workspace.layout.root / "git", sha256=False)
    with pytest.raises(KindFailed, match=r"^git is not installed$"):
        await program.run("version")


async def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    """A fault of the machine is the review's failure, not an internal fault."""
    case = make_case(tmp_path)
    program = Git(case.programs, tmp_path / "nothing", tmp_path)
    with pytest.raises(KindFailed, match=r"^git cannot be run: ") as failure:
        await program.run("version")
    assert failure.value.exit == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("raw", b""),
        ("raw", b"nonsense\0"),
        ("raw", b":100644 100644 1 2 M\0other\0"),
        ("raw", b":100644 100644 1 2 R100\0a\0"),
        ("raw", b":100644 100644 1 2 M\0a"),
        ("numstat", b""),
        ("numstat", b"x\ty\ta\0"),
        ("numstat", b"1\t1\ta\0" + b"1\t1\tb\0"),
        ("patch", b""),
        ("patch", b"diff --git a/a b/a\n" * 2),
    ],
)
def test_lists_that_do_not_fit(tmp_path: Path, name: str, content: bytes) -> None:
    """Where git's three answers disagree, nothing is guessed."""
    good = {
        "raw": b":100644 100644 1 2 M\0a\0",
        "numstat": b"1\t1\ta\0",
        "patch": b"diff --git a/a b/a\n@@ -1 +1 @@\n-a\n+b\n",
    }
    for place, files in (("good", good), ("bad", {**good, name: content})):
        directory = tmp_path / place
        (directory / "view").mkdir(parents=True)
        for file, data in files.items():
            (directory / file).write_bytes(data)
    assert derive(tmp_path / "good", tmp_path / "good" / "view") == Totals(1, 1, 1)
    with pytest.raises(PatchError):
        derive(tmp_path / "bad", tmp_path / "bad" / "view")
