"""The task envelope: what is read, and that each fault names its field."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinds.programs.envelope import EnvelopeError, TaskEnvelope, load, parse

GOOD: dict[str, Any] = {
    "schemaVersion": 3,
    "jobId": "5f6b",
    "workspaceId": "17",
    "prompt": "Review the change.\n",
    "pullRequestNumber": 42,
    "repositoryFullName": "octo/cat",
    "contextRoot": "context",
    "repositoryRoot": "repos/reviewed",
    "manifest": "INDEX.json",
    "practiceIndex": "inputs/practices/index.json",
    "compositionRequest": "inputs/composition.json",
    "preparedFeedback": "work/feedback.json",
    "precomputeScripts": "inputs/precompute",
}


def encoded(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def test_a_good_envelope_is_read_whole(tmp_path: Path) -> None:
    """Each field arrives under its own name."""
    (tmp_path / "task.json").write_bytes(encoded(extra={"ignored": 1}))
    assert load(tmp_path, "task.json") == TaskEnvelope(
        schema_version=3,
        job_id="5f6b",
        workspace_id="17",
        prompt="Review the change.\n",
        pull_request_number=42,
        repository_full_name="octo/cat",
        context_root="context",
        repository_root="repos/reviewed",
        manifest="INDEX.json",
        practice_index="inputs/practices/index.json",
        composition_request="inputs/composition.json",
        prepared_feedback="work/feedback.json",
        precompute_scripts="inputs/precompute",
    )


def test_ids_may_be_numbers() -> None:
    """A gateway that counts its jobs and workspaces is understood."""
    envelope = parse(encoded(jobId=7, workspaceId=8))
    assert (envelope.job_id, envelope.workspace_id) == ("7", "8")


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_missing_field_is_named(name: str) -> None:
    """No field may be left out."""
    fields = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(EnvelopeError, match=rf"^{name}: is missing$"):
        parse(json.dumps(fields).encode())


@pytest.mark.parametrize("name", sorted(GOOD))
@pytest.mark.parametrize("value", [None, "", " ", [], {}, True, 1.5, -1, 0, "\ud800"])
def test_a_wrong_value_is_named(name: str, value: Any) -> None:
    """No field takes nothing, a list, a flag, half a character or a number below one."""
    with pytest.raises(EnvelopeError, match=f"^{name}: "):
        parse(encoded(**{name: value}))


@pytest.mark.parametrize("version", [2, 4])
def test_another_version_is_refused(version: int) -> None:
    """The version is judged before anything else."""
    with pytest.raises(EnvelopeError, match=rf"^schemaVersion: {version} is not 3$"):
        parse(json.dumps({"schemaVersion": version}).encode())


@pytest.mark.parametrize(
    "location",
    [
        "/etc/passwd",
        "a//b",
        "a/",
        "./a",
        "a/.",
        "..",
        "a/../b",
        "a\\b",
        "C:/a",
        "a\nb",
        "a\x00b",
        "a\x7f",
        "a\x85b",
        "x" * 256,
        "/".join(["abc"] * 1025),
    ],
)
@pytest.mark.parametrize("name", ["contextRoot", "precomputeScripts"])
def test_a_location_that_leaves_the_workspace_is_refused(name: str, location: str) -> None:
    """Absolute, climbing, ambiguous and overlong locations are faults of that field."""
    with pytest.raises(EnvelopeError, match=f"^{name}: must "):
        parse(encoded(**{name: location}))


@given(st.text())
def test_an_accepted_location_stays_below(location: str) -> None:
    """Whatever is accepted normalises to itself."""
    try:
        envelope = parse(encoded(manifest=location))
    except EnvelopeError:
        return
    assert os.path.normpath("/w/" + envelope.manifest) == "/w/" + location


@pytest.mark.parametrize("name", ["octo", "/cat", "octo/", "o c/to", "a//b"])
def test_a_repository_has_an_owner(name: str) -> None:
    """The full name is owner/name."""
    with pytest.raises(EnvelopeError, match=r"^repositoryFullName: "):
        parse(encoded(repositoryFullName=name))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "task: is not JSON"),
        (b"\xff", "task: is not UTF-8"),
        (b"[]", "task: is not a JSON object"),
        (b"[" * 100_000, "task: is not JSON"),
        (b'{"a":' + b"1" * 10_000 + b"}", "task: is not JSON"),
        (b'{"jobId": "a", "jobId": "b"}', "'jobId': is given twice"),
    ],
)
def test_what_is_no_envelope_is_refused(data: bytes, message: str) -> None:
    """Bytes that are not one JSON object are a fault of the task as a whole."""
    with pytest.raises(EnvelopeError, match=f"^{message}"):
        parse(data)


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    """The bound is told."""
    (tmp_path / "task.json").write_bytes(encoded(prompt="x" * (1 << 20)))
    with pytest.raises(EnvelopeError, match=r"^task: task.json is larger than 1,048,576 bytes$"):
        load(tmp_path, "task.json")


def test_no_link_is_followed(tmp_path: Path) -> None:
    """Neither the file nor a directory on the way may be a link."""
    outside, workspace = tmp_path / "outside", tmp_path / "workspace"
    outside.mkdir()
    workspace.mkdir()
    (outside / "task.json").write_bytes(encoded())
    (workspace / "task.json").symlink_to(outside / "task.json")
    (workspace / "sub").symlink_to(outside)
    for name in ("task.json", "sub/task.json"):
        with pytest.raises(EnvelopeError, match=r"^task: .* cannot be read"):
            load(workspace, name)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    """A directory, a fifo and nothing at all are faults; none is waited for."""
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name in ("directory", "fifo", "nothing", "nothing/task.json", "../task.json"):
        with pytest.raises(EnvelopeError, match=r"^task: "):
            load(tmp_path, name)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    """Good and bad loads close what they opened."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "task.json").write_bytes(encoded())
    before = os.listdir("/proc/self/fd")
    load(tmp_path, "a/task.json")
    for name in ("a", "a/nothing", "nothing/task.json"):
        with pytest.raises(EnvelopeError):
            load(tmp_path, name)
    assert os.listdir("/proc/self/fd") == before


def test_its_import_is_light() -> None:
    """A program that reads its envelope imports no library for it."""
    code = "import sys, kinds.programs.envelope; print([m for m in ('pydantic', 'anyio', 'httpx') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
