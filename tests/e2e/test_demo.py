"""`python -m driver.stub.demo` as a person calls it: what it shows, what it leaves, and how it ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from driver.stub.example import make_example

COMMAND = [sys.executable, "-m", "driver.stub.demo"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    make_example(tmp_path / "example", tmp_path / "scratch")
    return tmp_path / "example"


@contextmanager
def started(tmp_path: Path, *arguments: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    """A demo in a session of its own, whose temporary files lie below `tmp`; it is gone when the block is left."""
    temporary = tmp_path / "tmp"
    temporary.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(temporary), **environment},
    )
    try:
        yield process
    finally:
        below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        for one in below:
            one.kill()
        process.wait()


def demo(tmp_path: Path, *arguments: str, **environment: str) -> tuple[int, list[str]]:
    """The exit and the lines of a demo that was left alone."""
    with started(tmp_path, *arguments, **environment) as process:
        output, _ = process.communicate(timeout=50)
    return process.returncode, output.splitlines()


def until(process: "subprocess.Popen[str]", event: str) -> list[str]:
    """The lines of a running demo up to one that tells of this event."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if event in line:
            return lines
    raise AssertionError("\n".join(lines))


def test_a_review_is_shown(tmp_path: Path, repository: Path) -> None:
    """Observations with file and line, then the feedback at its place; a second review replaces the first."""
    out = tmp_path / "result"
    for _ in range(2):
        exit, lines = demo(tmp_path, f"--out={out}", f"--repository={repository}", "--range=HEAD~2..HEAD")
        assert exit == 0
        end = lines.index("the review ended COMPLETED, exit 0")
        assert lines[end + 1] == "  !!  errors-are-specific: NOT_MET (MAJOR)"
        assert "      stock/shelf.py:14" in lines
        assert "        >         except:" in lines
        feedback = lines.index("the composition ended COMPLETED, exit 0")
        assert feedback > end
        assert lines[feedback + 1 : feedback + 3] == [
            "  stock/load.py:12",
            "      An added line prints for its author. (no-debug-leftovers, minor)",
        ]
        assert lines.index("  stock/shelf.py:14") < lines.index("  summary")
        named = [line.rpartition("  ")[0] for line in lines]
        assert f"  {out}/out/result.json" in named
        assert f"  {out}/feedback/feedback.json" in named
        (out / "notes.txt").write_text("mine")
    assert sorted(path.name for path in out.iterdir()) == [".demo-result", "feedback", "notes.txt", "out"]
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--repository=/none", "--range=a..b"], "error: /none: no such directory"),
        (["--repository=/", "--range=a..b"], "error: /: not a git repository"),
        (["--repository=."], "error: RANGE: which commits are to be reviewed?"),
        (["--repository={repository}", "--range=HEAD..HEAD"], "error: HEAD..HEAD: an empty range"),
        (["--repository={repository}", "--range=HEAD"], "error: HEAD: must be a range"),
        (["--repository={repository}", "--range=-x..HEAD"], "error: -x: unknown revision"),
        (["--out={repository}"], "error: {repository}: holds other things"),
        (["--out=/dev/null/x"], "error: /dev/null/x: cannot hold the result"),
        (["--provider-url=http://x"], "error: MODEL: is required with PROVIDER_URL"),
        (["--provider-url=ftp://x", "--model=m"], "error: PROVIDER_URL: must begin with http:// or https://"),
        (["--provider-url=http://[x", "--model=m"], "error: PROVIDER_URL: "),
        (["--provider-url=http://x:99999", "--model=m"], "error: PROVIDER_URL: its port"),
        (["--provider-url=http://x", "--model=m", "KEY"], "error: PROVIDER_KEY: must be printable ASCII"),
    ],
)
def test_a_mistake_is_one_clear_line(tmp_path: Path, repository: Path, arguments: list[str], complaint: str) -> None:
    """What the person got wrong is one line at the end and exit 2, before a driver is started."""
    key = {"PROVIDER_KEY": "k\u00e9y"} if "KEY" in arguments else {}
    given = [argument.format(repository=repository) for argument in arguments if argument != "KEY"]
    exit, lines = demo(tmp_path, f"--out={tmp_path / 'result'}", *given, **key)
    assert exit == 2
    assert lines[-1].startswith(complaint.format(repository=repository))
    assert len(lines) == 1 or (len(lines) == 2 and lines[0].startswith("reviewing "))
    assert not (tmp_path / "result").exists()
    assert (repository / "README.md").exists()
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(("number", "to_all"), [(signal.SIGINT, True), (signal.SIGINT, False), (signal.SIGTERM, False)])
def test_a_stop_leaves_nothing_behind(tmp_path: Path, repository: Path, number: signal.Signals, to_all: bool) -> None:
    """Ctrl-C, which goes to the whole group, and `kill`: the driver ends the run, and no process or file is left."""
    out = tmp_path / "result"
    with started(tmp_path, f"--out={out}", f"--repository={repository}", "--range=HEAD~2..HEAD") as process:
        until(process, "program.started")
        below = psutil.Process(process.pid).children(recursive=True)
        if to_all:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        output, _ = process.communicate(timeout=40)
        assert process.returncode == 130
        assert not any(one.is_running() for one in below)
    lines = output.splitlines()
    assert lines[-1] == "stopped"
    assert any("run.ended" in line and "outcome=INTERRUPTED" in line for line in lines)
    assert "Traceback" not in output
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not out.exists()


def test_a_driver_that_dies(tmp_path: Path, repository: Path) -> None:
    """One line says that the driver has ended, and its programs are gone with it."""
    out = tmp_path / "result"
    with started(tmp_path, f"--out={out}", f"--repository={repository}", "--range=HEAD~2..HEAD") as process:
        until(process, "program.started")
        driver, *programs = psutil.Process(process.pid).children(recursive=True)
        driver.kill()
        output, _ = process.communicate(timeout=40)
        assert psutil.wait_procs(programs, timeout=5)[1] == []
    assert process.returncode == 1
    assert output.splitlines()[-1].startswith("error: the driver ended by itself, with exit code 137")
    assert "Traceback" not in output
    assert list((tmp_path / "tmp").iterdir()) == []
