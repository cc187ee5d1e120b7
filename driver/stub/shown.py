"""What an uploaded review says, for a person at a terminal."""

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

_MARKS: Final = {"MET": "ok", "NOT_MET": "!!", "NOT_APPLICABLE": "--", "UNDETERMINED": "??"}
# Citations of the reviewed repository are shown as paths in it.
_REVIEWED: Final = "repos/reviewed/"


def unpack_result(archive: bytes, target: Path) -> list[Path]:
    """Write the files of an uploaded archive below `target`, which is made; the files, sorted."""
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(target, filter="data")
        return sorted(target / name for name in tar.getnames() if (target / name).is_file())


def review_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """`out/result.json` as lines: each observation with file and line, then what was not reached."""
    for observation in result["observations"]:
        yield from _observation_lines(observation)
    for practice in result["coverage"]:
        if practice["state"] == "NOT_REACHED":
            yield f"  ..  {practice['practiceSlug']}: not reached: {practice['reason']}"
    admission = result.get("admission")
    if admission:
        yield f"  {len(admission['admitted'])} admitted, {len(admission['refused'])} refused by the gateway"


def read_review(directory: Path) -> Mapping[str, Any] | None:
    """The result that lies in an unpacked `out/`, or None when the run left none."""
    try:
        result: Mapping[str, Any] = json.loads((directory / "result.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return result


def _observation_lines(observation: Mapping[str, Any]) -> Iterator[str]:
    severity = f" ({observation['severity']})" if observation.get("severity") else ""
    mark = _MARKS[observation["outcome"]]
    yield f"  {mark}  {observation['practiceSlug']}: {observation['outcome']}{severity}"
    yield f"      {observation['summary']}"
    for citation in observation["citations"]:
        path = citation["path"].removeprefix(_REVIEWED)
        yield f"      {path}:{citation['startLine']}"
        for line in str(citation.get("quote", "")).splitlines()[:3]:
            yield f"        > {line}"
