"""The annotated patch: numbers that can be cited, and nothing that could be mistaken for one."""

import io
import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinds.annotate import Patch, PatchError, Range

MARKED = re.compile(rb"\[L(\d+|-)\] ([ +-])(.*)", re.DOTALL)


def annotated(patch: bytes) -> tuple[bytes, list[list[Range]]]:
    """The annotated patch, and the ranges of each of its sections."""
    target = io.BytesIO()
    reader = Patch(io.BytesIO(patch), target)
    sections = []
    while not reader.at_end:
        sections.append(list(reader.section()))
    return target.getvalue(), sections


def git_diff(directory: Path, old: bytes, new: bytes) -> bytes:
    """What git prints for a file that changed from `old` to `new`."""
    (directory / "old").write_bytes(old)
    (directory / "new").write_bytes(new)
    command = ["git", "diff", "--no-index", "--text", "--no-color", "--no-ext-diff", "old", "new"]
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True)
    assert done.returncode in (0, 1)
    return done.stdout


HEADER = b"diff --git a/f b/f\nindex 111..222 100644\n--- a/f\n+++ b/f\n"


def test_lines_are_numbered_as_in_the_new_file() -> None:
    """Context and added lines carry the new file's number, removed lines none."""
    patch = HEADER + b"@@ -9,4 +9,4 @@ def f():\n one\n-two\n+TWO\n three\n four\n"
    expected = HEADER + (b"@@ -9,4 +9,4 @@ def f():\n[L9]  one\n[L-] -two\n[L10] +TWO\n[L11]  three\n[L12]  four\n")
    assert annotated(patch) == (expected, [[(9, 12)]])


def test_a_short_header_means_one_line() -> None:
    """`@@ -1 +1 @@` stands for one line on each side; the note about a missing line feed is kept as it is."""
    patch = HEADER + b"@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n"
    expected = HEADER + (b"@@ -1 +1 @@\n[L-] -a\n\\ No newline at end of file\n[L1] +b\n\\ No newline at end of file\n")
    assert annotated(patch) == (expected, [[(1, 1)]])


def test_content_cannot_pass_for_a_header() -> None:
    """Lines that look like headers, once their first sign is taken, are still lines of the hunk."""
    body = b"@@ -1,3 +1,3 @@\n--- a/other\n-@@ -1 +1 @@\n-x\n+++ b/other\n+diff --git a/x b/x\n+[L99] +y\n"
    expected = (
        b"@@ -1,3 +1,3 @@\n[L-] --- a/other\n[L-] -@@ -1 +1 @@\n[L-] -x\n"
        b"[L1] +++ b/other\n[L2] +diff --git a/x b/x\n[L3] +[L99] +y\n"
    )
    assert annotated(HEADER + body) == (HEADER + expected, [[(1, 3)]])


def test_a_deleted_file_has_nothing_to_cite() -> None:
    """Its hunk gives no range."""
    patch = HEADER + b"@@ -1,2 +0,0 @@\n-a\n-b\n"
    assert annotated(patch) == (HEADER + b"@@ -1,2 +0,0 @@\n[L-] -a\n[L-] -b\n", [[]])


@pytest.mark.parametrize(
    "header", [b"index 111..222 160000\n", b"new file mode 160000\n", b"deleted file mode 160000\n"]
)
def test_a_submodule_has_no_lines(header: bytes) -> None:
    """What git prints for a submodule is in no file, so it has no number."""
    start = b"diff --git a/sub b/sub\n" + header
    text, sections = annotated(start + b"@@ -1 +1 @@\n-Subproject commit 1\n+Subproject commit 2\n")
    assert text == start + b"@@ -1 +1 @@\n[L-] -Subproject commit 1\n[L-] +Subproject commit 2\n"
    assert sections == [[]]


def test_sections_are_told_apart() -> None:
    """A section without hunks (a binary file, a mode) ends where the next begins."""
    binary = b"diff --git a/b b/b\nindex 1..2 100644\nBinary files a/b and b/b differ\n"
    mode = b"diff --git a/m b/m\nold mode 100644\nnew mode 100755\n"
    text = HEADER + b"@@ -1 +1 @@\n-a\n+b\n@@ -9,0 +10,2 @@\n+c\n+d\n"
    assert annotated(binary + text + mode)[1] == [[], [(1, 1), (10, 11)], []]


def test_a_long_line_is_one_line() -> None:
    """A line of megabytes gets one number and is copied whole."""
    line = b"x\ry" * 1_000_000
    patch = HEADER + b"@@ -0,0 +1,2 @@\n+" + line + b"\n+end\n"
    assert annotated(patch)[0] == HEADER + b"@@ -0,0 +1,2 @@\n[L1] +" + line + b"\n[L2] +end\n"


@pytest.mark.parametrize(
    "patch",
    [
        b"hello\n",
        HEADER + b"@@ what @@\n",
        HEADER + b"@@ -1,2 +1,2 @@\n a\n",
        HEADER + b"@@ -1,2 +1,2 @@\n a\ndiff --git a/g b/g\n",
        HEADER + b"@@ -1,1 +1,2 @@\n-a\n-b\n+c\n+d\n",
        HEADER + b"@@ -1 +1 @@\n-a\n+b",
        HEADER + b"@@ -1 +1 @@\n\n",
    ],
)
def test_what_is_no_patch_is_an_error(patch: bytes) -> None:
    """A patch that git would not write is refused, never guessed at."""
    with pytest.raises(PatchError):
        annotated(patch)


@pytest.mark.parametrize("hunk", [b"@@ -0,0 +1,5000 @@\n" + b"+a\n" * 5000, b"@@ -1,5000 +0,0 @@\n" + b"-a\n" * 5000])
def test_the_check_can_end_it(hunk: bytes) -> None:
    """A caller that was cancelled is heard within some lines."""

    def check() -> None:
        raise InterruptedError

    patch = HEADER + hunk
    with pytest.raises(InterruptedError):
        list(Patch(io.BytesIO(patch), io.BytesIO(), check).section())


LINE = st.sampled_from(
    [b"a", b"b", b"", b"-- a", b"++ b", b"@@ -1 +1 @@", b"\xff\xe9", b"c\r", b"\r", b"[L1] x", b"\\"]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(LINE, max_size=40), st.lists(LINE, max_size=40), st.booleans(), st.booleans())
def test_each_number_names_its_line(
    tmp_path_factory: pytest.TempPathFactory, old: list[bytes], new: list[bytes], old_ends: bool, new_ends: bool
) -> None:
    """For any edit, each numbered line is that line of the new file, and the ranges hold just these numbers."""
    directory = tmp_path_factory.mktemp("edit")
    before = b"\n".join(old) + (b"\n" if old_ends else b"")
    after = b"\n".join(new) + (b"\n" if new_ends else b"")
    text, sections = annotated(git_diff(directory, before, after))
    lines = after.split(b"\n")
    numbers = []
    for line in text.split(b"\n"):
        if match := MARKED.fullmatch(line):
            number, sign, content = match.groups()
            assert (number == b"-") == (sign == b"-")
            if number != b"-":
                assert lines[int(number) - 1] == content
                numbers.append(int(number))
    assert numbers == [n for section in sections for first, last in section for n in range(first, last + 1)]
