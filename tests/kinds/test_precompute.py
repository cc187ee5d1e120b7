"""The precompute stage: hints are kept, and whatever goes wrong is recorded and skipped."""

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from kinds.precompute import ScriptEnd, precompute
from tests.kinds.review_case import Case, make_case, script
from tests.kinds.reviewed import ENVELOPE_READ

pytestmark = pytest.mark.anyio


@pytest.fixture
def case(tmp_path: Path) -> Case:
    case = make_case(tmp_path)
    for directory in case.workspace.layout.writable:
        directory.mkdir(parents=True, exist_ok=True)
    return case


def add(case: Case, name: str, text: str) -> Path:
    """Add a script to the workspace."""
    path = case.workspace.layout.inputs / "precompute" / name
    script(path, text)
    return path


def outputs(case: Case) -> dict[str, Any]:
    """What the stage left: each file of its directory, read as JSON."""
    directory = case.workspace.layout.work / "precompute"
    return {path.name: json.loads(path.read_bytes()) for path in directory.iterdir()}


async def run(case: Case) -> list[ScriptEnd]:
    return await precompute(case.held(), ENVELOPE_READ)


async def test_a_script_gets_its_four_arguments(case: Case) -> None:
    """Context root, repository, change view and output path; no door and no token."""
    add(
        case,
        "all.sh",
        '#!/bin/sh\nprintf \'["%s","%s","%s","%s","%s"]\' "$1" "$2" "$3" "$#" "$DRIVER_DOOR_KEY" > "$4"\n',
    )
    assert await run(case) == [ScriptEnd("all.sh", "ok")]
    root = str(case.workspace.layout.root)
    assert outputs(case) == {
        "all.sh.json": [f"{root}/context", f"{root}/repos/reviewed", f"{root}/work/change", "4", ""],
        "index.json": [{"script": "all.sh", "status": "ok", "reason": None}],
    }
    assert case.sink.events("precompute.") == [{"event": "precompute.script_ended", "script": "all.sh", "status": "ok"}]


async def test_they_run_in_order_and_only_if_executable(case: Case) -> None:
    """Sorted by name; files without the execute bit, links and directories are no scripts."""
    for name in ("b", "a", "C"):
        add(case, name, '#!/bin/sh\necho "{}" > "$4"\n')
    add(case, "not", "#!/bin/sh\n").chmod(0o644)
    place = case.workspace.layout.inputs / "precompute"
    (place / "link").symlink_to(place / "a")
    (place / "directory").mkdir()
    assert [end.script for end in await run(case)] == ["C", "a", "b"]


BAD = {
    "exit": ("exit 3", "failed", "exit code 3"),
    "signal": ("kill -9 $$", "failed", "ended by signal 9"),
    "nothing": (":", "invalid", "it wrote no output"),
    "nonsense": ('echo nonsense > "$4"', "invalid", "its output is not a JSON object or list"),
    "text": ('echo \'"text"\' > "$4"', "invalid", "its output is not a JSON object or list"),
    "nan": ("echo '[NaN]' > \"$4\"", "invalid", "its output is not a JSON object or list"),
    "bytes": ('printf \'["\\377"]\' > "$4"', "invalid", "its output is not a JSON object or list"),
    "deep": ("head -c 200000 /dev/zero | tr '\\0' '[' > \"$4\"", "invalid", "its output is not a JSON object or list"),
    "link": ('ln -s /etc/passwd "$4"', "invalid", "its output is no regular file"),
    "fifo": ('mkfifo "$4"', "invalid", "its output is no regular file"),
    "directory": ('mkdir -p "$4/below"', "invalid", "its output is no regular file"),
    "late": ('echo "{}" > "$4"; exit 1', "failed", "exit code 1"),
    "large": ('head -c 11000000 /dev/zero > "$4"', "failed", None),
}


@pytest.mark.parametrize("name", sorted(BAD))
async def test_what_goes_wrong_is_recorded(case: Case, name: str) -> None:
    """A bad script has its status and reason, leaves nothing, and the next one still runs."""
    text, status, reason = BAD[name]
    add(case, name, f"#!/bin/sh\n{text}\n")
    add(case, "zz", '#!/bin/sh\necho "{}" > "$4"\n')
    ends = await run(case)
    assert [(end.script, end.status) for end in ends] == [(name, status), ("zz", "ok")]
    assert reason is None or ends[0].reason == reason
    assert sorted(outputs(case)) == ["index.json", "zz.json"]
    assert outputs(case)["index.json"][0] == {"script": name, "status": status, "reason": ends[0].reason}


async def test_a_script_without_an_interpreter(case: Case) -> None:
    """An executable that cannot be executed is one that failed."""
    add(case, "missing", "#!/nonexistent/interpreter\n")
    assert [(end.script, end.status) for end in await run(case)] == [("missing", "failed")]


async def test_a_hanging_script_costs_the_stage_its_time_and_no_more(case: Case) -> None:
    """A tenth of the work time: the script is ended, what comes after it is skipped."""
    case.seconds = 5.0
    add(case, "a", '#!/bin/sh\necho "{}" > "$4"\n')
    add(case, "b", '#!/bin/sh\necho "{}" > "$4"\nexec sleep 60\n')
    add(case, "c", '#!/bin/sh\necho "{}" > "$4"\n')
    started = anyio.current_time()
    assert await run(case) == [
        ScriptEnd("a", "ok"),
        ScriptEnd("b", "timeout", "the time of the stage was over"),
        ScriptEnd("c", "skipped", "the time of the stage was over"),
    ]
    assert anyio.current_time() - started < 5
    assert sorted(outputs(case)) == ["a.json", "index.json"]


async def test_without_time_nothing_runs(case: Case) -> None:
    """At the work deadline each script is skipped."""
    case.seconds = 0.0
    add(case, "a", "#!/bin/sh\n")
    assert await run(case) == [ScriptEnd("a", "skipped", "the time of the stage was over")]


async def test_the_index_is_nobodys_output(case: Case) -> None:
    """A script whose output would be the index is skipped; one that writes it anyway does not keep it."""
    add(case, "index", '#!/bin/sh\necho "{}" > "$4"\n')
    add(case, "other", '#!/bin/sh\ncd "$(dirname "$4")"; echo "[]" | tee index.json more.json a.json > "$4"\n')
    ends = await run(case)
    assert [(end.script, end.status) for end in ends] == [("index", "skipped"), ("other", "ok")]
    assert sorted(outputs(case)) == ["index.json", "other.json"]
    assert outputs(case)["index.json"][1] == {"script": "other", "status": "ok", "reason": None}


async def test_a_spoiled_output_of_another_script(case: Case) -> None:
    """What a later script puts in place of the index, a link even, is replaced and not followed."""
    target = case.workspace.layout.root / "target"
    target.write_text("untouched")
    add(case, "a", f'#!/bin/sh\necho "{{}}" > "$4"\nln -s {target} "$(dirname "$4")/index.json"\n')
    assert await run(case) == [ScriptEnd("a", "ok")]
    assert target.read_text() == "untouched"
    assert sorted(outputs(case)) == ["a.json", "index.json"]


async def test_what_cannot_be_removed_is_left_behind(case: Case) -> None:
    """Directories that forbid it, and outputs that another script took away, leave the others and the index whole."""
    add(case, "a", '#!/bin/sh\necho "{}" > "$4"\n')
    add(case, "b", '#!/bin/sh\necho "[]" > "$4"\n')
    spoil = "mkdir -p d/e; touch d/e/f x; chmod 0 d/e; chmod 0500 d; rm a.json; chmod 0500 ."
    add(case, "c", f'#!/bin/sh\ncd "$(dirname "$4")"; {spoil}; exit 1\n')
    ends = await run(case)
    assert ends == [
        ScriptEnd("a", "invalid", "another script removed its output"),
        ScriptEnd("b", "ok"),
        ScriptEnd("c", "failed", "exit code 1"),
    ]
    assert sorted(outputs(case)) == ["b.json", "index.json"]
    assert [entry["status"] for entry in outputs(case)["index.json"]] == ["invalid", "ok", "failed"]


async def test_without_scripts(case: Case) -> None:
    """No directory, or something else in its place: an empty index, and the review goes on."""
    assert await run(case) == []
    assert outputs(case) == {"index.json": []}
    case.workspace.layout.inputs.mkdir()
    (case.workspace.layout.inputs / "precompute").write_text("a file")
    assert await run(case) == []
    assert outputs(case) == {"index.json": []}


async def test_an_overlong_name(case: Case) -> None:
    """A script whose output cannot have its name fails alone."""
    name = "x" * 254
    add(case, name, '#!/bin/sh\necho "{}" > "$4" || true\nexit 0\n')
    add(case, "y", '#!/bin/sh\necho "{}" > "$4"\n')
    assert [(end.script, end.status) for end in await run(case)] == [(name, "invalid"), ("y", "ok")]


async def test_too_many_scripts(case: Case) -> None:
    """Only the first hundred are run, the rest is recorded."""
    case.seconds = 0.0
    for n in range(103):
        add(case, f"{n:03}", "#!/bin/sh\n")
    ends = await run(case)
    assert [end.reason for end in ends[99:101]] == [
        "the time of the stage was over",
        "only the first 100 scripts are run",
    ]
    assert len(outputs(case)["index.json"]) == 103
    assert len(case.sink.events("precompute.script_ended")) == 100


async def test_a_full_disk_is_not_the_reviews_failure(case: Case) -> None:
    """A stage that cannot write says so and is over."""
    work = case.workspace.layout.work
    for directory in sorted(work.iterdir()):
        directory.rmdir()
    work.rmdir()
    work.write_text("no directory")
    assert await run(case) == []
    assert [event["event"] for event in case.sink.events("precompute.")] == ["precompute.stage_failed"]
    os.unlink(work)
