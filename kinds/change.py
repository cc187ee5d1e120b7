"""The change view: what the change under review did, in a form that a model can read and cite.

Below `work/change`, complete or not there at all:

- `diff.patch`: the patch, renames detected, each line of a hunk with its number (kinds.annotate).
- `diff_stat.txt`: git's own overview.
- `files.json`: a list of `{path, oldPath?, status, added, deleted, binary, hunks}`, in the patch's order. A
  status is added, modified, deleted, renamed or type_changed; `hunks` are the `[first, last]` lines of the
  new file that the patch shows, context included. It is ASCII JSON.

The two commits stand in `metadata.json` of the context root, as `baseCommit` and `headCommit`. They are
compared as they are told: who captured the change chose the base. Only commits are compared, never the
checkout, whose reading could run filters.
"""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import anyio.from_thread
import anyio.to_thread

from driver.errors import KindFailed
from driver.exits import ProgramExit
from driver.kind import HeldRun
from kinds.annotate import PatchError
from kinds.changed import Totals, derive
from kinds.git import Git, quarantine
from kinds.programs.envelope import TaskEnvelope, read_below

_METADATA_BYTES: Final = 1024 * 1024
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

_DIFF: Final = (
    "diff-tree",
    "-r",
    "--find-renames",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--no-relative",
    "--ignore-submodules=none",
    "--submodule=short",
)


@dataclass(frozen=True)
class Commits:
    """The two commits that a change lies between, as object names in lower-case hex."""

    base: str
    head: str


async def derive_change(held: HeldRun, envelope: TaskEnvelope) -> Totals:
    """Write the change view. Raises KindFailed (exit 2): a failure is never an empty change."""
    layout = held.workspace.layout
    scratch, view = layout.work / "change.partial", layout.work / "change"
    commits = await anyio.to_thread.run_sync(read_commits, layout.root, envelope.context_root)
    repository = layout.root / envelope.repository_root
    try:
        await anyio.to_thread.run_sync(_clear, scratch, view)
        git = await anyio.to_thread.run_sync(_quarantine, held, repository, scratch, commits)
        await _ask(git, commits, scratch)
        totals = await anyio.to_thread.run_sync(_assemble, scratch, view)
    except OSError as error:
        raise KindFailed(ProgramExit.UNHANDLED, f"the change view cannot be written ({error.strerror})") from error
    except PatchError as error:
        raise KindFailed(ProgramExit.UNHANDLED, f"the change cannot be understood: {error}") from error
    held.log.info("change.derived", files=totals.files, added=totals.added, deleted=totals.deleted)
    return totals


def read_commits(root: Path, context_root: str) -> Commits:
    """The two commits in the context's metadata.json. Blocks. Raises KindFailed (exit 2)."""
    name = f"{context_root}/metadata.json"
    try:
        data = read_below(root, name, _METADATA_BYTES + 1)
    except OSError as error:
        raise KindFailed(ProgramExit.UNHANDLED, f"{name} cannot be read ({error.strerror})") from error
    if len(data) > _METADATA_BYTES:
        raise KindFailed(ProgramExit.UNHANDLED, f"{name} is larger than {_METADATA_BYTES:,} bytes")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise KindFailed(ProgramExit.UNHANDLED, f"{name} is not JSON") from error
    base, head = (_commit(fields, field, name) for field in ("baseCommit", "headCommit"))
    if len(base) != len(head):
        raise KindFailed(ProgramExit.UNHANDLED, f"{name}: baseCommit and headCommit are of different hashes")
    return Commits(base, head)


def _commit(fields: object, field: str, name: str) -> str:
    value = fields.get(field) if isinstance(fields, dict) else None
    if not isinstance(value, str) or not _COMMIT.fullmatch(value):
        raise KindFailed(ProgramExit.UNHANDLED, f"{name}: {field} must be a full commit name of 40 or 64 hex digits")
    return value


def _clear(*directories: Path) -> None:
    for directory in directories:
        if directory.is_symlink() or directory.exists():
            shutil.rmtree(directory)


def _quarantine(held: HeldRun, repository: Path, scratch: Path, commits: Commits) -> Git:
    (scratch / "view").mkdir(parents=True)
    return quarantine(held.programs, repository, scratch / "git", sha256=len(commits.head) == 64)


async def _ask(git: Git, commits: Commits, scratch: Path) -> None:
    for name, commit in (("base", commits.base), ("head", commits.head)):
        try:
            await git.run("cat-file", "-e", f"{commit}^{{commit}}")
        except KindFailed as error:
            reason = f"the {name} commit {commit} cannot be read in the reviewed repository: {error.reason}"
            raise KindFailed(error.exit, reason) from error
    between = (commits.base, commits.head, "--")
    await git.run(*_DIFF, "--raw", "-z", *between, stdout=scratch / "raw")
    await git.run(*_DIFF, "--numstat", "-z", *between, stdout=scratch / "numstat")
    await git.run(*_DIFF, "--stat=160,120", "--summary", *between, stdout=scratch / "view" / "diff_stat.txt")
    prefixes = ("--src-prefix=a/", "--dst-prefix=b/")
    await git.run(*_DIFF, "--patch", "--unified=3", *prefixes, *between, stdout=scratch / "patch")


def _assemble(scratch: Path, view: Path) -> Totals:
    """Put the view together and in its place. A cancelled caller ends this within some lines."""
    totals = derive(scratch, scratch / "view", anyio.from_thread.check_cancelled)
    (scratch / "view").rename(view)
    shutil.rmtree(scratch)
    return totals
