"""The uploaded results. A claim delivers once; the ETag is the digest of what was kept (RFC 9110, 8.8.3)."""

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driver.stub.errors import Rejected, ResultKept


def digest_field(digest: bytes) -> str:
    """A SHA-256 digest as a structured field, as in Content-Digest and Repr-Digest (RFC 9530)."""
    return f"sha-256=:{base64.b64encode(digest).decode()}:"


@dataclass(frozen=True)
class Result:
    """What one claim delivered. `exit` is the program's, `digest` the Content-Digest of the body."""

    run: str
    epoch: int
    exit: int
    digest: str
    body: bytes

    @property
    def etag(self) -> str:
        return f'"{self.digest}"'

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "epoch": self.epoch,
            "exit": self.exit,
            "bytes": len(self.body),
            "digest": self.digest,
        }


class Results:
    """What was delivered, oldest first."""

    def __init__(self, results: Iterable[Result] = ()) -> None:
        self._kept = {(result.run, result.epoch): result for result in results}

    def __iter__(self) -> Iterator[Result]:
        return iter(self._kept.values())

    def require_new(self, run: str, epoch: int) -> None:
        """Raises ResultKept, with the ETag of the first result, when this claim delivered before."""
        kept = self._kept.get((run, epoch))
        if kept is not None:
            raise ResultKept(kept.etag)

    def keep(self, result: Result, promised: str | None) -> None:
        """Keep a result whose body has the digest that its Content-Digest promised. Rejected (400) else."""
        self.require_new(result.run, result.epoch)
        if promised is None:
            raise Rejected(400, "content_digest_missing", "Content-Digest is required")
        if promised != result.digest:
            raise Rejected(400, "content_digest_mismatch", f"the body has the digest {result.digest}")
        self._kept[result.run, result.epoch] = result

    def newest(self, run: str) -> Result | None:
        """The result of the newest claim of a run that delivered one."""
        of_run = [result for result in self if result.run == run]
        return max(of_run, key=lambda result: result.epoch, default=None)


def write_result(directory: Path, result: Result) -> None:
    """Keep a result on disk: `<run>-<epoch>.tar`, and beside it `.json` with the exit and the digest."""
    directory.mkdir(parents=True, exist_ok=True)
    name = f"{result.run}-{result.epoch}"
    _write_whole(directory / f"{name}.tar", result.body)
    _write_whole(directory / f"{name}.json", (json.dumps(result.as_json(), indent=2) + "\n").encode())


def _write_whole(path: Path, content: bytes) -> None:
    """All of it or nothing: a stub may be killed while it writes."""
    unfinished = path.with_name(f".{path.name}.part")
    unfinished.write_bytes(content)
    unfinished.replace(path)
