"""The files of a measurement."""

import json
from pathlib import Path

from kinds.programs.heap import SessionHeap
from kinds.programs.results import Report
from kinds.programs.session_log import SessionLog


def test_the_debug_file_is_bounded(tmp_path: Path) -> None:
    """However many sessions there were, the file may be uploaded; it keeps the figures of each and drops details."""
    report = Report(tmp_path / "out", SessionHeap(2, 1).statistics)
    for number in range(300):
        log = SessionLog(f"area {number}", ("p" * 120,) * 8)
        for turn in range(60):
            log.refused(f"{turn} " + "\N{SNOWMAN}" * 1000)
        report.sessions.append(log)
    report.write(0)
    path = tmp_path / "out/runner-debug.json"
    assert path.stat().st_size < 10 * 1024 * 1024
    sessions = json.loads(path.read_text())["sessions"]
    assert len(sessions) == 300
    assert "refusals" not in sessions[0]
    del report.sessions[10:]
    report.write(0)
    assert len(json.loads(path.read_text())["sessions"][0]["refusals"]) == 50
