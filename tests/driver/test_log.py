"""Logs: one JSON object a line, bound fields, and no secret however it is written."""

import base64
import json
import os
import resource
import signal
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.log import LineWriter, Log, QueuedSink, render_console, render_json
from driver.secrets import Secrets

TOKEN = 'ey.a-Token/with+signs_"and\\more'


def make_log(lines: list[str], level: str = "info") -> Log:
    return Log(lines.append, render=render_json, wall=lambda: 1_764_456_000.25, secrets=Secrets(TOKEN), level=level)


def test_line() -> None:
    """A line is one JSON object with time, level, event, what was bound and the event's own fields."""
    lines: list[str] = []
    make_log(lines).bind({"run.id": "r1", "run.epoch": 3}).info("run.pulled", attempt=1)
    assert json.loads(lines[0]) == {
        "time": "2025-11-29T22:40:00.250Z",
        "level": "info",
        "event": "run.pulled",
        "run.id": "r1",
        "run.epoch": 3,
        "attempt": 1,
    }
    assert lines[0].endswith("}\n")


def test_level() -> None:
    """Lines below the level are not written."""
    lines: list[str] = []
    log = make_log(lines, level="warning")
    log.info("a.b")
    log.warning("c.d")
    log.error("e.f")
    assert [json.loads(line)["event"] for line in lines] == ["c.d", "e.f"]


@given(st.text(max_size=20), st.text(max_size=20))
def test_secret_is_masked_in_every_form(before: str, after: str) -> None:
    """A secret is masked as it is, JSON-escaped, and inside base64 at any position."""
    lines: list[str] = []
    log = make_log(lines)
    encoded = base64.b64encode(f"{before}{TOKEN}{after}".encode()).decode()
    log.info("program.output", text=f"{before}{TOKEN}{after}", encoded=encoded, escaped=json.dumps(TOKEN))
    stable = base64.b64encode(TOKEN.encode())[4:-4].decode()
    assert TOKEN not in lines[0]
    assert json.dumps(TOKEN)[1:-1] not in lines[0]
    assert stable not in lines[0]
    assert "***" in lines[0]


def test_short_secret_is_refused() -> None:
    """A secret that would mask ordinary words is an error, not a silent gap."""
    with pytest.raises(ValueError, match="at least 8"):
        Secrets("short")


def test_console() -> None:
    """People read time, event and fields; what a program prints stands alone."""
    record = {
        "time": "2026-11-29T22:40:00.250Z",
        "level": "warning",
        "event": "gate.off",
        "text": "two words",
        "n": 0.5,
    }
    assert render_console(record) == '22:40:00 ! gate.off               text="two words"  n=0.5'
    progress = {**record, "level": "info", "event": "workspace.progress", "bytes": 1500, "total": 512 << 20}
    assert render_console(progress).endswith("n=0.5  bytes=1500  total=512.0MiB")
    output = {"time": "2026-11-29T22:40:00.250Z", "level": "info", "event": "program.output", "text": "hello"}
    assert render_console(output) == "22:40:00   | hello"


def test_reader_that_stalls_never_blocks_the_writer() -> None:
    """With nobody reading, logging goes on; what did not fit is dropped, and its count is told later."""
    read_end, write_end = os.pipe()
    sink = QueuedSink(write_end)
    line = "x" * 65_535 + "\n"
    for _ in range(200):
        sink(line)
    received = bytearray()

    def read_all() -> None:
        while data := os.read(read_end, 1 << 20):
            received.extend(data)

    reader = threading.Thread(target=read_all)
    reader.start()
    sink.close()
    os.close(write_end)
    reader.join()
    os.close(read_end)
    kept = received.count(b"x\n")
    dropped = sum(json.loads(told)["lines"] for told in received.split(b"\n") if told.startswith(b"{"))
    assert 64 <= kept < 200
    assert kept + dropped == 200


def test_console_escapes_what_a_terminal_acts_on() -> None:
    """A value with control characters is shown, not obeyed."""
    record = {"time": "2026-11-29T22:40:00.250Z", "level": "info", "event": "run.ended", "reason": "\x1b[2J\u202e\nx"}
    assert render_console(record) == '22:40:00   run.ended              reason="\\u001b[2J\\u202e\\nx"'


def test_non_blocking_output() -> None:
    """Where somebody else has made the output non-blocking, a full pipe is waited for and no line is torn."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    sink = QueuedSink(write_end)
    lines = [f"{number:05} {'x' * 9_000}" for number in range(50)]
    for line in lines:
        sink(line + "\n")
    received = bytearray()

    def read_all() -> None:
        while data := os.read(read_end, 1 << 16):
            received.extend(data)

    reader = threading.Thread(target=read_all)
    reader.start()
    sink.close()
    os.close(write_end)
    reader.join()
    os.close(read_end)
    assert received.decode().splitlines() == lines


def test_output_that_was_full_for_a_while(tmp_path: Path) -> None:
    """A line that was torn by a full disk spoils no other."""
    file = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    writer = LineWriter(file)
    resource.setrlimit(resource.RLIMIT_FSIZE, (15, before[1]))
    try:
        written = [writer.write(line) for line in (b"first\n", b"torn in two\n", b"lost\n")]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    written += [writer.write(line) for line in (b"next\n", b"last\n")]
    os.close(file)
    assert written == [True, False, False, True, True]
    assert (tmp_path / "log").read_text().splitlines() == ["first", "torn in t", "next", "last"]


def test_lines_that_could_not_be_written_are_counted(tmp_path: Path) -> None:
    """The count of lost lines is kept until it can be told."""
    lost_at, told_at = os.open("/dev/full", os.O_WRONLY), os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY)
    sink = QueuedSink(lost_at)
    for number in range(5):
        sink(f"{number}\n")
    while sink.lost < 5:
        time.sleep(0)
    os.dup2(told_at, lost_at)
    sink("last\n")
    sink.close()
    os.close(lost_at)
    os.close(told_at)
    last, told = (tmp_path / "log").read_text().splitlines()
    assert last == "last"
    assert json.loads(told) | {"time": ""} == {"time": "", "level": "warning", "event": "log.dropped", "lines": 5}


def test_many_threads() -> None:
    """Lines of several threads come out whole, each thread's in its order."""
    read_end, write_end = os.pipe()
    sink = QueuedSink(write_end)

    def write(name: str) -> None:
        for number in range(100):
            sink(f"{name} {number}\n")

    writers = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    sink.close()
    os.close(write_end)
    with os.fdopen(read_end) as reader:
        received = reader.read().splitlines()
    for name in "abcd":
        assert [line for line in received if line.startswith(name)] == [f"{name} {number}" for number in range(100)]


def test_closed_output_does_not_raise() -> None:
    """An output that is gone is not the run's problem."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    sink = QueuedSink(write_end)
    sink("into the void\n")
    sink.close()
    os.close(write_end)
    assert not any(thread.name == "log" and thread.is_alive() for thread in threading.enumerate())
