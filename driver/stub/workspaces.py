"""The workspace that a run downloads: a directory as it is, or the tree of a review of a git range.

The tree is the one of docs/kinds.md, "The workspace". What cannot go into an archive is left out and
listed in INDEX.json with the reason.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from driver.stub import example
from driver.stub.archive import Archive, pack_directory, unpackable, walk
from driver.stub.practices import BUNDLED, Practices, load_practices
from driver.stub.repository import ReviewedRange, checkout, open_range
from driver.stub.scenario import WorkspaceTable

_LOCATIONS: Final = {
    "contextRoot": "context",
    "repositoryRoot": "repos/reviewed",
    "manifest": "INDEX.json",
    "practiceIndex": "inputs/practices/index.json",
    "compositionRequest": "inputs/composition.json",
    "preparedFeedback": "inputs/history/feedback.json",
    "precomputeScripts": "inputs/precompute",
}
_PROMPT: Final = "Measure each practice on this change. Report what you can cite, and nothing else."
_KIND_OF: Final = {"context": "record", "repos": "repository", "inputs": "input"}


@dataclass(frozen=True)
class Prepared:
    """A packed workspace, and the practices in it: None when a directory was packed as it is."""

    archive: Archive
    practices: tuple[str, ...] | None


def prepare_workspace(table: WorkspaceTable, scratch: Path) -> Prepared:
    """Pack the workspace of a scenario below `scratch`. Blocks. Raises StubError."""
    target = scratch / "workspace.tar"
    if table.directory is not None:
        return Prepared(pack_directory(table.directory, target), None)
    practices = load_practices(table.practices or BUNDLED)
    repository, text = table.repository, table.range
    if repository is None or text is None:
        repository, text = scratch / "example", example.RANGE
        example.make_example(repository, scratch)
    reviewed = open_range(repository.absolute(), text, scratch)
    tree = scratch / "tree"
    build_tree(reviewed, practices, tree, scratch, title=table.title)
    archive = pack_directory(tree, target)
    shutil.rmtree(tree)
    return Prepared(archive, tuple(practices.slugs))


def build_tree(
    reviewed: ReviewedRange, practices: Practices, tree: Path, scratch: Path, *, title: str | None = None
) -> None:
    """Write the workspace of a review of `reviewed` below `tree`. Blocks."""
    checkout(reviewed, tree / "repos" / "reviewed", scratch)
    practices.write(tree / "inputs" / "practices")
    (tree / "inputs" / "precompute").mkdir()
    _write(tree / "inputs" / "history" / "feedback.json", {"feedback": []})
    for name, record in _records(reviewed, title).items():
        _write(tree / "context" / name, record)
    _write(tree / "task.json", _task(reviewed))
    _write(tree / "INDEX.json", _manifest(tree))


def _records(reviewed: ReviewedRange, title: str | None) -> dict[str, Any]:
    newest = reviewed.commits[0]
    metadata = {
        "title": title or newest["subject"],
        "description": newest["body"],
        "author": newest["author"],
        "repository": reviewed.repository.name,
        "range": reviewed.text,
        "baseCommit": reviewed.base,
        "headCommit": reviewed.head,
        "commits": len(reviewed.commits),
        "changedFiles": len(reviewed.changes),
    }
    return {
        "metadata.json": metadata,
        "commits.json": {"commits": reviewed.commits},
        "change.json": {"files": reviewed.changes},
    }


def _task(reviewed: ReviewedRange) -> dict[str, Any]:
    name = re.sub(r"[^\w.-]+", "-", reviewed.repository.name) or "repository"
    return {
        "schemaVersion": 3,
        "jobId": f"local-{reviewed.head[:12]}",
        "workspaceId": "1",
        "prompt": _PROMPT,
        "pullRequestNumber": 1,
        "repositoryFullName": f"local/{name}",
        **_LOCATIONS,
    }


@dataclass(frozen=True)
class _Captured:
    path: str
    source: str
    bytes: int
    sha256: str


def _manifest(tree: Path) -> dict[str, Any]:
    """What is below `tree`; what may not be packed is removed and listed with the reason.

    The repository's own `.git` is one part and not listed file by file.
    """
    refused = []
    for path in list(walk(tree)):
        problem = unpackable(tree, path) if path.exists() or path.is_symlink() else None
        if problem:
            refused.append({"path": _printable(path.relative_to(tree)), "reason": problem})
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return {"captured": [asdict(captured) for captured in _captured(tree)], "refused": refused}


def _captured(tree: Path) -> Iterator[_Captured]:
    for path in walk(tree):
        place = path.relative_to(tree)
        if path.is_file() and ".git" not in place.parts:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            yield _Captured(str(place), _KIND_OF.get(place.parts[0], "task"), path.stat().st_size, digest)


def _printable(path: Path) -> str:
    return ascii(str(path))[1:-1]


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8", errors="replace")
