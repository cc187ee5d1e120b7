"""What a run downloads: a directory as it is, or the tree of a review of a real range."""

import hashlib
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from driver.http1 import Request
from driver.stub.archive import Archive, pack_directory
from driver.stub.errors import RepositoryError, StubError
from driver.stub.scenario import WorkspaceTable
from driver.stub.transfer import asked_range
from driver.stub.workspaces import prepare_workspace
from driver.workspace.tar_reader import TarLimits, TarReader
from kinds.programs.envelope import parse
from tests.stub.support import calling, code_of, digest_of


def git(directory: Path, *arguments: str) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@example.org",
    }
    done = subprocess.run(
        ["git", "-C", str(directory), *arguments], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(repository: Path, subject: str, **files: str) -> str:
    for name, content in files.items():
        (repository / name.replace("__", "/")).parent.mkdir(parents=True, exist_ok=True)
        (repository / name.replace("__", "/")).write_text(content)
    git(repository, "add", "--all")
    git(repository, "commit", "-q", "--allow-empty", "-m", subject, "-m", "Why.")
    return git(repository, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "re po"
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    commit(path, "First", a="1\n")
    (path / "link").symlink_to("a")
    commit(path, "Second", a="1\n2\n", new="n\n")
    commit(path, "Third", sub__b="b\n")
    return path


def prepared(tmp_path: Path, name: str = "scratch", **table: Any) -> Archive:
    (tmp_path / name).mkdir()
    return prepare_workspace(WorkspaceTable(**table), tmp_path / name).archive


def unpacked(archive: Archive, target: Path) -> Path:
    with tarfile.open(archive.path) as tar:
        for entry in tar:
            assert entry.isreg() or entry.isdir()
            place = target / entry.name
            if entry.isdir():
                place.mkdir(parents=True, exist_ok=True)
            else:
                content = tar.extractfile(entry)
                assert content is not None
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content.read())
                place.chmod(entry.mode)
    return target


def test_a_range_becomes_the_tree_of_a_review(repository: Path, tmp_path: Path) -> None:
    """The envelope, the records, the practices and a real checkout of the head are where they belong."""
    head, base = git(repository, "rev-parse", "HEAD"), git(repository, "rev-parse", "HEAD~2")
    archive = prepared(tmp_path, repository=repository, range="HEAD~2..main")
    tree = unpacked(archive, tmp_path / "tree")
    envelope = parse((tree / "task.json").read_bytes())
    assert envelope.repository_full_name == "local/re-po"
    metadata = json.loads((tree / envelope.context_root / "metadata.json").read_text())
    assert (metadata["baseCommit"], metadata["headCommit"]) == (base, head)
    assert (metadata["title"], metadata["commits"]) == ("Third", 2)
    commits = json.loads((tree / "context" / "commits.json").read_text())["commits"]
    assert [(c["subject"], c["body"]) for c in commits] == [("Third", "Why."), ("Second", "Why.")]
    change = json.loads((tree / "context" / "change.json").read_text())["files"]
    assert {f["path"]: (f["added"], f["removed"]) for f in change} == {
        "a": (1, 0),
        "new": (1, 0),
        "link": (1, 0),
        "sub/b": (1, 0),
    }
    index = json.loads((tree / envelope.practice_index).read_text())
    assert len(index) == 4
    assert len({practice["area"] for practice in index}) == 2
    assert all((tree / "inputs" / "practices" / f"{p['slug']}.md").is_file() for p in index)
    assert (tree / envelope.precompute_scripts).is_dir()
    assert (tree / envelope.prepared_feedback).is_file()


def test_the_checkout_is_a_repository_of_its_own(repository: Path, tmp_path: Path) -> None:
    """The head is checked out with its history; there are no hooks, remotes, logs or links."""
    (repository / ".git" / "hooks").mkdir(exist_ok=True)
    (repository / ".git" / "hooks" / "post-checkout").write_text(f"#!/bin/sh\ntouch {tmp_path}/hook-ran\n")
    (repository / ".git" / "hooks" / "post-checkout").chmod(0o755)
    head = git(repository, "rev-parse", "HEAD")
    tree = unpacked(prepared(tmp_path, repository=repository, range="HEAD~1..HEAD"), tmp_path / "tree")
    checkout = tree / "repos" / "reviewed"
    assert git(checkout, "rev-parse", "HEAD") == head
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "log", "--format=%s") == "Third\nSecond\nFirst"
    assert git(checkout, "remote") == ""
    assert git(checkout, "diff", "--name-only", "HEAD~1", "HEAD") == "sub/b"
    assert not (checkout / ".git" / "hooks").exists()
    assert not (tmp_path / "hook-ran").exists()
    assert not (checkout / ".git" / "logs").exists()
    assert (checkout / "link").read_text() == "a"
    assert str(repository) not in (checkout / ".git" / "config").read_text()


def test_the_same_range_has_the_same_digest(repository: Path, tmp_path: Path) -> None:
    """Packing twice gives the same bytes, and the manifest tells what is in them."""
    first = prepared(tmp_path, "one", repository=repository, range="HEAD~1..HEAD")
    second = prepared(tmp_path, "two", repository=repository, range="HEAD~1..HEAD")
    assert first.digest == second.digest
    tree = unpacked(first, tmp_path / "tree")
    captured = json.loads((tree / "INDEX.json").read_text())["captured"]
    task = next(entry for entry in captured if entry["path"] == "task.json")
    assert task["sha256"] == hashlib.sha256((tree / "task.json").read_bytes()).hexdigest()
    assert task["bytes"] == (tree / "task.json").stat().st_size
    assert {entry["source"] for entry in captured} == {"record", "repository", "input", "task"}


def test_what_cannot_be_packed_is_listed(repository: Path, tmp_path: Path) -> None:
    """A file whose name may not be in an archive is left out, and INDEX.json says why."""
    commit(repository, "Odd", **{"odd\nname": "x\n", "odd\x85name": "x\n"})
    archive = prepared(tmp_path, repository=repository, range="HEAD~1..HEAD")
    tree = unpacked(archive, tmp_path / "tree")
    reason = "its name: NUL and control characters are refused in names"
    assert json.loads((tree / "INDEX.json").read_text())["refused"] == [
        {"path": "repos/reviewed/odd\\nname", "reason": reason},
        {"path": "repos/reviewed/odd\\x85name", "reason": reason},
    ]
    for _ in TarReader(TarLimits(archive.size)).feed(archive.path.read_bytes()):
        pass  # the driver takes it


def test_a_commit_message_may_hold_anything(repository: Path, tmp_path: Path) -> None:
    """Control characters in a message, also those that separate records, stay in it."""
    commit(repository, "One\x1e\x1ftwo\n\n\x1ebody\x1f\n\nend", a="3\n")
    commit(repository, "Last", a="4\n")
    tree = unpacked(prepared(tmp_path, repository=repository, range="HEAD~2..HEAD"), tmp_path / "tree")
    commits = json.loads((tree / "context/commits.json").read_text())["commits"]
    assert [(one["subject"], one["body"]) for one in commits] == [
        ("Last", "Why."),
        ("One\x1e\x1ftwo", "body\x1f\n\nend\n\nWhy."),
    ]


def test_a_repository_with_sha256_names(tmp_path: Path) -> None:
    """A repository of the other object format is reviewed like any."""
    path = tmp_path / "sha256"
    path.mkdir()
    git(path, "init", "-q", "-b", "main", "--object-format=sha256")
    commit(path, "First", a="1\n")
    head = commit(path, "Second", a="2\n")
    root = unpacked(prepared(tmp_path, repository=path, range="HEAD~1..HEAD"), tmp_path / "tree")
    assert len(head) == 64
    assert git(root / "repos" / "reviewed", "rev-parse", "HEAD") == head


@pytest.mark.parametrize(
    ("name", "value"),
    [("remote.origin.url", "ext::sh -c touch% {mark}"), ("remote.origin.uploadpack", "touch {mark}; false")],
)
def test_a_partial_clone_fetches_nothing(repository: Path, tmp_path: Path, name: str, value: str) -> None:
    """A repository's own configuration cannot make the stub run a command to fetch what is missing."""
    mark = tmp_path / "ran"
    for key, text in {
        "extensions.partialClone": "origin",
        "remote.origin.url": str(tmp_path / "nowhere"),
        "remote.origin.promisor": "true",
        "protocol.ext.allow": "always",
        name: value.format(mark=mark),
    }.items():
        git(repository, "config", key, text)
    blob = git(repository, "rev-parse", "HEAD:a")
    (repository / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(StubError):
        prepared(tmp_path, repository=repository, range="HEAD~2..HEAD")
    assert not mark.exists()


def test_three_dots_begin_where_the_two_parted(repository: Path, tmp_path: Path) -> None:
    """`main...topic` reviews what the topic added since it left."""
    parted = git(repository, "rev-parse", "HEAD")
    git(repository, "checkout", "-q", "-b", "topic")
    commit(repository, "Topic", t="t\n")
    git(repository, "checkout", "-q", "main")
    commit(repository, "Meanwhile", m="m\n")
    tree = unpacked(prepared(tmp_path, repository=repository, range="main...topic"), tmp_path / "tree")
    assert json.loads((tree / "context" / "metadata.json").read_text())["baseCommit"] == parted


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("HEAD..HEAD", "HEAD..HEAD: an empty range: there is no commit in it"),
        ("HEAD~1..nowhere", "nowhere: unknown revision"),
        ("--output=x..HEAD", "--output=x: unknown revision"),
        ("HEAD", "HEAD: must be a range, as in main..topic or HEAD~3..HEAD"),
        ("empty~1..empty", "empty~1..empty: an empty range: its commits change no file"),
    ],
)
def test_a_wrong_range_is_one_clear_line(repository: Path, tmp_path: Path, text: str, complaint: str) -> None:
    """What is wrong with a range is said with the range."""
    git(repository, "checkout", "-q", "-b", "empty")
    commit(repository, "Nothing")
    git(repository, "checkout", "-q", "main")
    with pytest.raises(RepositoryError) as caught:
        prepared(tmp_path, repository=repository, range=text)
    assert str(caught.value) == complaint


def test_a_wrong_repository_is_one_clear_line(tmp_path: Path) -> None:
    """No such path, no repository and no commits are told apart."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "bare").mkdir()
    git(tmp_path / "bare", "init", "-q")
    complaints = {
        "missing": "no such directory",
        "plain": "not a git repository",
        "bare": "a repository without commits",
    }
    for name, complaint in complaints.items():
        with pytest.raises(RepositoryError, match=complaint):
            prepared(tmp_path, f"scratch-{name}", repository=tmp_path / name, range="HEAD~1..HEAD")


def test_a_directory_is_packed_as_it_is(tmp_path: Path) -> None:
    """Every file arrives with its execute bit, and links are refused by name."""
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d" / "run").write_text("#!/bin/sh\n")
    (source / "d" / "run").chmod(0o700)
    (source / ("n" * 200)).write_text("long")
    tree = unpacked(pack_directory(source, tmp_path / "a.tar"), tmp_path / "tree")
    assert os.access(tree / "d" / "run", os.X_OK)
    assert (tree / ("n" * 200)).read_text() == "long"
    (source / "link").symlink_to("d")
    with pytest.raises(StubError, match="link: is a link"):
        pack_directory(source, tmp_path / "b.tar")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"range": "bytes=10-"}, (10, 99)),
        ({"range": "bytes=10-19"}, (10, 19)),
        ({"range": "bytes=90-500"}, (90, 99)),
        ({"range": "bytes=-5"}, (95, 99)),
        ({"range": "bytes=-500"}, (0, 99)),
        ({"range": "bytes=5-4"}, None),
        ({"range": "bytes=-"}, None),
        ({"range": "bytes=0-1,5-6"}, None),
        ({"range": "lines=1-2"}, None),
        ({"range": "bytes=10-", "if-range": '"d"'}, (10, 99)),
        ({"range": "bytes=10-", "if-range": '"other"'}, None),
        ({"range": "bytes=10-", "if-range": 'W/"d"'}, None),
    ],
)
def test_which_bytes_are_asked_for(headers: dict[str, str], expected: tuple[int, int] | None) -> None:
    """One byte range is served; anything else, and a range of another archive, gets the whole."""
    request = Request("GET", "/", tuple(headers.items()))
    assert asked_range(request, Archive(Path("x"), 100, "d")) == expected


@pytest.mark.anyio
async def test_ranges_over_the_wire() -> None:
    """206 names the range, 416 the size, and a stale If-Range brings the whole again."""
    async with calling() as caller:
        await caller.next()
        whole = await caller.get("runtime/workspace")
        size, etag = len(whole.content), whole.headers["etag"]
        assert etag == f'"{digest_of(whole.content)}"'
        part = await caller.get("runtime/workspace", range="bytes=512-1023", if_range=etag)
        assert (part.status_code, part.content) == (206, whole.content[512:1024])
        assert part.headers["content-range"] == f"bytes 512-1023/{size}"
        again = await caller.get("runtime/workspace", range="bytes=512-", if_range='"stale"')
        assert (again.status_code, again.content) == (200, whole.content)
        beyond = await caller.get("runtime/workspace", range=f"bytes={size}-")
        assert (beyond.status_code, code_of(beyond)) == (416, "range_not_satisfiable")
        assert beyond.headers["content-range"] == f"bytes */{size}"
        with tarfile.open(fileobj=io.BytesIO(whole.content)) as tar:
            assert tar.getnames()[0] == "INDEX.json"
