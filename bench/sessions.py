"""What sessions cost: the measuring program with 85 of them alive at once, each with its model call open.

A door of the benchmark's own holds all answers back until every session has its call open, twice lets the model read
files, and looks at the program's memory when the last calls are open, each with 2.5 MiB of transcript. The receipt
goes to `bench-out/`; the last line is one JSON object with the figures that have a bar.
"""

import asyncio
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

MIB: Final = 1024 * 1024
SESSIONS: Final = 85
HEAP_BYTES: Final = 256 * MIB
SHARE_BYTES: Final = 3 * MIB
RECEIPTS: Final = Path("bench-out")

_TURNS: Final = 2
_READS: Final = 37  # a turn; `read` shows 32 KiB at most
_LINE: Final = "    return None  # the usual way — naïve, without much ado, and as everybody else does it\n"
_LINES: Final = 600
_DIFF_LINES: Final = 1700  # what the brief shows of a change: 160 KiB
_START_BYTES: Final = 256 * 1024
_PRACTICE: Final = re.compile(rb"## Practice (p[0-9]+)")
_SECONDS: Final = 180
_USAGE: Final = {"input_tokens": 1, "output_tokens": 1}


def make_workspace(root: Path, sessions: int) -> None:
    """A workspace whose practices take so many sessions, and a file that fills what `read` may show."""
    locations = {
        "contextRoot": "context",
        "repositoryRoot": "repos/reviewed",
        "manifest": "INDEX.json",
        "practiceIndex": "inputs/practices/index.json",
        "compositionRequest": "inputs/composition.json",
        "preparedFeedback": "inputs/feedback.json",
        "precomputeScripts": "inputs/precompute",
    }
    task = {
        "schemaVersion": 3,
        "jobId": "job",
        "workspaceId": "workspace",
        "prompt": "Review the change.",
        "pullRequestNumber": 1,
        "repositoryFullName": "owner/name",
    }
    practices = [f"p{number}" for number in range(sessions)]
    index = [{"slug": slug, "area": slug, "title": slug} for slug in practices]
    files = {
        "task.json": json.dumps(task | locations),
        "inputs/practices/index.json": json.dumps(index),
        "work/change/diff.patch": f"[L1] +{_LINE}" * _DIFF_LINES + "[L2] +# \N{WHITE HEAVY CHECK MARK} \N{ROCKET}\n",
        "repos/reviewed/long.py": _LINE * _LINES,
        **{f"inputs/practices/{slug}.md": "Criteria." for slug in practices},
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    (root / "out").mkdir(exist_ok=True)


@dataclass
class HoldingDoor:
    """A door that answers a round of calls only when every session has its call of that round open.

    `look` is called when the calls of the last round are open; `bodies` is how long those were.
    """

    sessions: int
    turns: int
    look: Callable[[], None]
    port: int = 0
    bodies: list[int] = field(default_factory=list)
    _calls: int = 0
    _rounds: dict[int, asyncio.Event] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One call: its head, its body, and the answer once the others are here too."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            if "expect: 100-continue" in head:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            length = int(head.partition("content-length:")[2].split("\r\n")[0])
            answer = await self._answer(head, await _read(reader, length), length)
            body = json.dumps(answer).encode()
            start = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(start.encode() + body)
            await writer.drain()
        finally:
            writer.close()

    async def _answer(self, head: str, start: bytes, length: int) -> dict[str, Any]:
        if "/review/observations" in head.split("\r\n")[0]:
            return {"digest": "sha-256=:x:", "admitted": [], "refused": []}
        this = self._calls // self.sessions
        self._calls += 1
        everybody = self._rounds.setdefault(this, asyncio.Event())
        if this == self.turns:
            self.bodies.append(length)
        if self._calls % self.sessions == 0:
            if this == self.turns:
                self.look()
            everybody.set()
        await everybody.wait()
        return _report(start) if this == self.turns else _reads()


async def _read(reader: asyncio.StreamReader, length: int) -> bytes:
    """Take a whole body in; only its start is kept, which is where the practices are."""
    start = bytearray()
    while length and (piece := await reader.read(min(length, 1 << 16))):
        length -= len(piece)
        if len(start) < _START_BYTES:
            start += piece
    return bytes(start)


def _reads() -> dict[str, Any]:
    arguments = json.dumps({"path": "repos/reviewed/long.py"})
    calls = [_call(f"c{number}", "read", arguments) for number in range(_READS)]
    return {"status": "completed", "output": calls, "usage": _USAGE}


def _report(start: bytes) -> dict[str, Any]:
    practice = _PRACTICE.search(start)
    assert practice is not None
    observation: dict[str, Any] = {
        "practiceSlug": practice[1].decode(),
        "outcome": "MET",
        "summary": "It is.",
        "citations": [],
    }
    call = _call("last", "report_observation", json.dumps({"observations": [observation]}))
    return {"status": "completed", "output": [call], "usage": _USAGE}


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def resident(pid: int) -> dict[str, float]:
    """What a process holds and has held at most, in MiB (proc(5), VmRSS and VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    sizes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
    return {"resident": int(sizes["VmRSS"]) / 1024, "peak": int(sizes["VmHWM"]) / 1024}


async def hold(root: Path, sessions: int, turns: int) -> dict[str, Any]:
    """Run the program until its end; its memory with all calls of the last round open, and what became of it."""
    make_workspace(root, sessions)
    seen: dict[str, float] = {}
    door = HoldingDoor(sessions, turns, lambda: seen.update(resident(program.pid)))
    server = await asyncio.start_server(door.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sizes = ["--session-heap", str(HEAP_BYTES), "--session-size", str(SHARE_BYTES)]
    started = time.monotonic()
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-m", "kinds.programs.measure", "--task", "task.json", "--wire", "responses", *sizes),
        cwd=root,
        stdout=subprocess.DEVNULL,
        env={
            "DRIVER_DOOR_URL": f"http://127.0.0.1:{port}",
            "DRIVER_DOOR_KEY": "key",
            "DRIVER_MODEL": "model",
            "DRIVER_WORK_SECONDS": str(_SECONDS),
            "LANG": "C.UTF-8",
        },
    )
    try:
        exit = await asyncio.wait_for(program.wait(), _SECONDS)
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
        server.close()
    debug = json.loads((root / "out/runner-debug.json").read_text("utf-8"))
    return {
        "exit": exit,
        "seconds": round(time.monotonic() - started, 1),
        "sessions": len(door.bodies),
        "transcript_mib": sum(door.bodies) / MIB,
        "smallest_mib": min(door.bodies, default=0) / MIB,
        "heap_left": debug["heap"]["usedBytes"],
        **seen,
    }


def measure() -> dict[str, Any]:
    """The program with one session at its first call, and then with all of them; the figures that have a bar."""
    with TemporaryDirectory() as base, TemporaryDirectory() as full:
        before = asyncio.run(hold(Path(base), 1, 0))
        alive = asyncio.run(hold(Path(full), SESSIONS, _TURNS))
    growth = alive["resident"] - before["resident"]
    return {
        "sessions": alive["sessions"],
        "transcript_mib_each": round(alive["smallest_mib"], 2),
        "resident_mib": round(alive["resident"], 1),
        "peak_mib": round(alive["peak"], 1),
        "base_mib": round(before["resident"], 1),
        "mib_per_mib": round(growth / alive["transcript_mib"], 3),
        "heap_left": alive["heap_left"],
        "exit": alive["exit"],
        "seconds": alive["seconds"],
    }


def main() -> None:
    figures = measure()
    revision = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    receipt = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": revision,
        "machine": {"cpu": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "settings": {"heap_bytes": HEAP_BYTES, "share_bytes": SHARE_BYTES},
        "figures": figures,
    }
    RECEIPTS.mkdir(exist_ok=True)
    (RECEIPTS / "sessions.json").write_text(json.dumps(receipt, indent=1) + "\n", "utf-8")
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
