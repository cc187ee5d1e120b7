"""A range of a local repository: what it changes, and a checkout of its head with the history."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from driver.stub.errors import RepositoryError
from driver.stub.git import Git

# NUL is the one character that no part of a commit holds; `-z` puts one after each record too.
_RECORD: Final = "%H%x00%an%x00%aI%x00%s%x00%b"
_RECORD_FIELDS: Final = 5


@dataclass(frozen=True)
class ReviewedRange:
    """A range that has commits and changes something. `base` and `head` are commit ids."""

    repository: Path
    text: str
    base: str
    head: str
    commits: list[dict[str, Any]]
    changes: list[dict[str, Any]]


def open_range(repository: Path, text: str, scratch: Path) -> ReviewedRange:
    """Resolve `base..head` (or `base...head`, from where the two parted) in a repository. Blocks.

    Raises RepositoryError: no such path, no repository, no commits, an unknown revision, an empty range.
    """
    if not repository.is_dir():
        raise RepositoryError(f"{repository}: no such directory")
    git = Git(repository, scratch)
    if not git.ok("rev-parse", "--git-dir"):
        raise RepositoryError(f"{repository}: not a git repository")
    if not git.run("rev-list", "--all", "-n", "1").strip() and not git.ok("rev-parse", "--verify", "-q", "HEAD"):
        raise RepositoryError(f"{repository}: a repository without commits")
    base, head = _resolve(git, text)
    reviewed = ReviewedRange(repository, text, base, head, _commits(git, base, head), _changes(git, base, head))
    if not reviewed.commits:
        raise RepositoryError(f"{text}: an empty range: there is no commit in it")
    if not reviewed.changes:
        raise RepositoryError(f"{text}: an empty range: its commits change no file")
    return reviewed


def checkout(reviewed: ReviewedRange, target: Path, scratch: Path) -> None:
    """Make `target` a checkout of the head, with the history of both ends and nothing else. Blocks.

    There are no hooks, remotes or logs in it, and symbolic links are checked out as plain files.
    """
    target.mkdir(parents=True)
    git = Git(target, scratch)
    original = Git(reviewed.repository, scratch)
    git.run("init", "-q", "--template=", f"--object-format={original.run('rev-parse', '--show-object-format').strip()}")
    git.run("config", "core.symlinks", "false")
    source = original.run("rev-parse", "--absolute-git-dir").strip()
    git.run("fetch", "-q", "--no-tags", "--update-shallow", source, reviewed.head, reviewed.base)
    git.run("update-ref", "refs/review/base", reviewed.base)
    git.run("checkout", "-q", "--detach", reviewed.head)
    # An index written by a checkout holds inode numbers and times; the archive is to be the same each time.
    (target / ".git" / "index").unlink()
    git.run("read-tree", "HEAD")
    for leftover in ("FETCH_HEAD", "ORIG_HEAD"):
        (target / ".git" / leftover).unlink(missing_ok=True)


def _resolve(git: Git, text: str) -> tuple[str, str]:
    base, dots, head = text.partition("...") if "..." in text else text.partition("..")
    if not dots or not base:
        raise RepositoryError(f"{text}: must be a range, as in main..topic or HEAD~3..HEAD")
    base_id, head_id = _commit(git, base), _commit(git, head or "HEAD")
    if dots == "...":
        base_id = git.run("merge-base", base_id, head_id).strip()
    return base_id, head_id


def _commit(git: Git, revision: str) -> str:
    try:
        return git.run("rev-parse", "--verify", "-q", "--end-of-options", revision + "^{commit}").strip()
    except RepositoryError:
        raise RepositoryError(f"{revision}: unknown revision") from None


def _commits(git: Git, base: str, head: str) -> list[dict[str, Any]]:
    output = git.run("log", "-z", "--no-show-signature", f"--format={_RECORD}", f"{base}..{head}")
    fields = iter(output.split("\0")[:-1])
    return [
        {"commit": commit, "author": author, "at": at, "subject": subject, "body": body.strip()}
        for commit, author, at, subject, body in zip(*[fields] * _RECORD_FIELDS, strict=True)
    ]


def _changes(git: Git, base: str, head: str) -> list[dict[str, Any]]:
    """One record for each changed file; a binary file has no counts (git-diff(1), "--numstat")."""
    output = git.run("diff", "--no-ext-diff", "--no-textconv", "--no-renames", "--numstat", "-z", base, head)
    changes = []
    for record in output.split("\0")[:-1]:
        added, removed, path = record.split("\t", 2)
        counts = {"added": None, "removed": None} if added == "-" else {"added": int(added), "removed": int(removed)}
        changes.append({"path": path, **counts})
    return changes
