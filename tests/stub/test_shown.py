"""What a person is shown of an uploaded result, and the directory that it goes into."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from driver.stub.errors import StubError
from driver.stub.shown import FEEDBACK, read_feedback, read_review, remove_result, replace_result, require_ours

OBSERVATION = {
    "practiceSlug": "no-open-ends",
    "outcome": "NOT_MET",
    "severity": "MINOR",
    "summary": "An open end.\nOn two lines.",
    "citations": [{"path": "repos/reviewed/a.py", "startLine": 3, "endLine": 4, "quote": "x\ny"}],
}
NOT_REACHED = {"practiceSlug": "tests", "state": "NOT_REACHED", "reason": "no time"}


def packed(files: dict[str, bytes], **types: bytes) -> bytes:
    """An archive of these files; `types` gives entries of other types by their names."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for name, kind in types.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            tar.addfile(entry)
    return target.getvalue()


def reviewed(tmp_path: Path, result: Any) -> list[str]:
    text = result if isinstance(result, bytes) else json.dumps(result).encode()
    replace_result(packed({"out/result.json": text}), tmp_path / "result")
    return read_review(tmp_path / "result")


def test_a_review_as_lines(tmp_path: Path) -> None:
    """Each observation with file, line and quote, then what was not reached, then the admission."""
    result = {"observations": [OBSERVATION], "coverage": [NOT_REACHED], "admission": {"admitted": [1], "refused": []}}
    assert reviewed(tmp_path, result) == [
        "  !!  no-open-ends: NOT_MET (MINOR)",
        "      An open end.",
        "      On two lines.",
        "      a.py:3",
        "        > x",
        "        > y",
        "  ..  tests: not reached: no time",
        "  1 admitted, 0 refused by the gateway",
    ]


FEEDBACK_FILE: dict[str, Any] = {
    "units": [
        {"observationIds": ["c"], "body": "All of it.", "placement": {"kind": "SUMMARY"}},
        {"observationIds": ["b"], "body": "Later.", "placement": {"kind": "INLINE", "path": "b.py", "line": 9}},
        {"observationIds": ["a"], "body": "Two\n\nlines.", "placement": {"kind": "INLINE", "path": "b.py", "line": 3}},
    ],
    "summary": "It is fine.",
    "uncovered": [
        {"id": "d", "practiceSlug": "naming", "outcome": "NOT_MET"},
        {"id": "e", "practiceSlug": "tests", "outcome": "MET"},
    ],
    "refused": [{"unit": "{}", "reason": "it is empty"}],
}


def composed(tmp_path: Path, feedback: Any) -> list[str]:
    text = feedback if isinstance(feedback, bytes) else json.dumps(feedback).encode()
    replace_result(packed({"out/feedback.json": text}), tmp_path / "result", FEEDBACK)
    return read_feedback(tmp_path / "result")


def test_feedback_as_lines(tmp_path: Path) -> None:
    """Each unit at its place in the order of the change, then the summary, then what is missing or was refused."""
    assert composed(tmp_path, FEEDBACK_FILE) == [
        *("  b.py:3", "      Two", "", "      lines.", ""),
        *("  b.py:9", "      Later.", ""),
        *("  on the change as a whole", "      All of it.", ""),
        *("  summary", "      It is fine."),
        "  ..  naming: no feedback on it",
        "  ..  a unit was refused: it is empty",
    ]


@pytest.mark.parametrize(
    "feedback",
    [b"\xff", b"{}", b"null", {"units": 5}, {"units": [{}]}, {"units": [{"placement": 1}]}],
)
def test_feedback_of_another_kind(tmp_path: Path, feedback: Any) -> None:
    """What is not the bundled program's is said to be so, in one line."""
    assert composed(tmp_path, feedback) == ["  feedback.json is not what the bundled program writes"]


def test_feedback_that_commands_the_terminal(tmp_path: Path) -> None:
    """Control characters and marks of direction are blanks, wherever they stand."""
    evil = "\x1b[2J\u202e\x9b\ud800"
    unit = {"body": evil, "placement": {"kind": "INLINE", "path": evil, "line": evil}}
    lines = composed(tmp_path, FEEDBACK_FILE | {"units": [unit], "summary": evil})
    assert lines
    assert all(line.isprintable() for line in lines)


def test_a_review_without_feedback_removes_the_feedback_before(tmp_path: Path) -> None:
    """What an earlier composition left does not stand beside a later review; a directory of somebody else's stays."""
    replace_result(packed({"out/feedback.json": b"{}"}), tmp_path / "result", FEEDBACK)
    replace_result(packed({"out/result.json": b"{}"}), tmp_path / "result")
    remove_result(tmp_path / "result", FEEDBACK)
    assert sorted(path.name for path in (tmp_path / "result").iterdir()) == [".demo-result", "out"]
    (tmp_path / "mine" / FEEDBACK).mkdir(parents=True)
    remove_result(tmp_path / "mine", FEEDBACK)
    assert (tmp_path / "mine" / FEEDBACK).is_dir()


def test_no_line_commands_the_terminal(tmp_path: Path) -> None:
    """Control characters and marks of direction are blanks, wherever they stand."""
    evil = "\x1b[2J\u202e\x9b\ud800"
    result = {
        "observations": [OBSERVATION | {"summary": evil, "practiceSlug": evil}],
        "coverage": [NOT_REACHED | {"reason": evil}],
    }
    assert all(line.isprintable() for line in reviewed(tmp_path, result))


@pytest.mark.parametrize(
    "result",
    [
        *(b"\xff", b"[" * 100_000, b"{}", b"null", []),
        *({"observations": [one], "coverage": []} for one in (5, {}, OBSERVATION | {"outcome": "?"})),
    ],
)
def test_a_result_of_another_kind(tmp_path: Path, result: Any) -> None:
    """What is not the bundled program's is said to be so, in one line."""
    assert reviewed(tmp_path, result) == ["  result.json is not what the bundled program writes"]


def test_a_run_without_a_result(tmp_path: Path) -> None:
    """A run that left no result.json has nothing to show."""
    assert replace_result(packed({"out/driver.json": b"{}"}), tmp_path) == [tmp_path / "out/driver.json"]
    assert read_review(tmp_path) == []


def test_the_newest_result_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    """Of a directory that held a result only that is replaced."""
    replace_result(packed({"out/a": b"1", "out/d/b": b"2"}), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    assert replace_result(packed({"out/a": b"3"}), tmp_path) == [tmp_path / "out/a"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".demo-result", "notes.txt", "out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]


@pytest.mark.parametrize("inside", ["out/result.json", "notes.txt", ".hidden"])
def test_a_directory_with_other_things_is_left_alone(tmp_path: Path, inside: str) -> None:
    """Nothing is put into a directory that somebody else filled, and nothing in it is removed."""
    (tmp_path / inside).parent.mkdir(exist_ok=True)
    (tmp_path / inside).write_text("mine")
    with pytest.raises(StubError, match="holds other things"):
        require_ours(tmp_path)
    with pytest.raises(StubError, match="holds other things"):
        replace_result(packed({"out/a": b"1"}), tmp_path)
    assert (tmp_path / inside).read_text() == "mine"


@pytest.mark.parametrize("place", ["file", "file/below", "/dev/null/x", "/proc/nowhere"])
def test_a_place_that_can_hold_no_directory(tmp_path: Path, place: str) -> None:
    """It is told before anything was done for it, or at the latest when it is made."""
    (tmp_path / "file").touch()
    with pytest.raises(StubError, match="cannot hold the result"):
        replace_result(packed({"out/a": b"1"}), tmp_path / place)


@pytest.mark.parametrize(
    ("archive", "complaint"),
    [
        (b"", "without its two end marks"),
        (b"no archive" * 100, "the header's"),
        (packed({"elsewhere": b"x"}), "holds more than out/"),
        (packed({"../out/x": b"x"}), "`..` is refused"),
        (packed({"/out/x": b"x"}), "absolute paths are refused"),
        (packed({}, out=tarfile.SYMTYPE), "symbolic links are refused"),
        (packed({}, out=tarfile.LNKTYPE), "hard links are refused"),
    ],
)
def test_an_upload_that_is_no_result(tmp_path: Path, archive: bytes, complaint: str) -> None:
    """Whoever uploads is not trusted: nothing is written beside `out/`, and one line says why."""
    with pytest.raises(StubError, match=complaint):
        replace_result(archive, tmp_path / "here")
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    assert not (tmp_path / "here/out").exists()
