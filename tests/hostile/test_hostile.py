"""Each hostile program against the real driver: it breaks nothing, and nothing of it is left.

The statement that a program attacks is its first line. Others that attack the same, with what they need:

| statement | beside the programs here |
|---|---|
| the token is nowhere | `test_token.py`, with `programs/seeker.py` |
| the token and the door's key reach no log, however split | `tests/driver/process/test_output.py`, `test_log.py` |
| nothing survives: a fork bomb, 1,000 children in a storm of orphans | `tests/driver/process/test_programs.py` |
| nothing survives the driver's own SIGKILL | `tests/e2e/test_container.py`, `tests/e2e/test_signals.py` |
| programs write only where they may, and cannot signal the driver | `tests/driver/process/test_confinement.py` |
| a full disk at every stage | `tests/e2e/test_full_disk.py` |
| an output that nobody reads | `tests/e2e/test_process_end.py` |
"""

from pathlib import Path

import pytest

from tests.e2e.contained import needs_root
from tests.hostile.attack import PROGRAMS, USERS, Case, attack

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

# The deadline bounds the grace of a program that ignores SIGTERM, the work time is what it may hang for.
SHORT = {"deadline_seconds": 12, "work_seconds": 2}
STOPPED = "stopped at the work deadline"
MAKES_FILES = {"DRIVER_PROGRAM_DISK": "16MiB"}

SURVIVAL = [
    Case("sessions"),
    Case("reborn"),
    Case("stopped"),
    Case("traced", says=("traces its sibling",)),
    Case("in_vfork", says=("blocked in vfork",)),
    Case("subreaper", says=("reaps",)),
    Case("namespaces"),
]
LIMITS = [
    Case("heap", 137, "memory"),
    Case("shared_memory", 137, "memory"),
    Case("memory_files", 137, "memory"),
    Case("crowd", 137, "processes"),
    Case("long_file", 153, "file_size"),
    Case("closed_directories", 137, "disk"),
    Case("unlinked_files", 137, "disk"),
    Case("deep_directories", 137, "disk"),
    Case("tiny_files", 137, "disk", settings=MAKES_FILES),
    Case("holes_and_links"),
    Case("limits", says=("Too many open files", "no core")),
    Case("privileges", says=("tried",)),
]
HANGS = [
    Case("ignores_sigterm", 124, STOPPED, run=SHORT, hangs="sleeping"),
    Case("stops_itself", 124, STOPPED, run=SHORT, hangs="stopped"),
    Case("closes_output", 124, STOPPED, run=SHORT, hangs="sleeping"),
    Case("uninterruptible", 124, STOPPED, run=SHORT, hangs="in uninterruptible sleep"),
    Case("held_by_a_tracer", 124, STOPPED, run=SHORT, hangs="held by a tracer", says=("traces",)),
]
CASES = [*SURVIVAL, *LIMITS, *HANGS]
ELSEWHERE = {"seeker", "flood", "controls", "door_key"}


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_program(tmp_path: Path, case: Case, user: str) -> None:
    """It ends with its exit and its reason in the log, in the result and in `end`, and before that is gone."""
    needs_root()
    seen = await attack(tmp_path, case, user)
    assert seen.left == []
    assert [line for line in seen.output if line.startswith(("BROKEN", "Traceback"))] == []
    assert set(case.says) <= set(seen.output)
    stopping = [line["doing"] for line in seen.driver.named("program.stopping")]
    assert len(stopping) == (case.hangs is not None)
    assert all(doing.startswith(str(case.hangs)) for doing in stopping), stopping
    assert seen.ends == [(case.exit, case.reason)] * 3, [one["used"] for one in seen.driver.named("program.over_limit")]


def test_every_program_is_run() -> None:
    """No program lies there without a test, and each says what it attacks."""
    programs = {path.stem: path.read_text("utf-8") for path in PROGRAMS.glob("*.py")}
    assert set(programs) == {case.program for case in CASES} | ELSEWHERE
    assert [name for name, text in programs.items() if not text.startswith('"""')] == []
