"""Runs one hostile program as the review of a real driver, which is PID 1 of a container of namespaces."""

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from driver.stub.server import Stub, running_stub
from tests.e2e.contained import contained, environment, members, pid_1
from tests.e2e.driving import Driver, driving, scenario

PROGRAMS = Path(__file__).with_name("programs")
USERS = {"root": (0, 0), "anybody": (1000730000, 0)}
TIGHT = {"DRIVER_PROGRAM_MEMORY": "96MiB", "DRIVER_PROGRAM_DISK": "64MiB", "DRIVER_PROGRAM_PROCESSES": "40"}

_MOST_SECONDS = 50.0


@dataclass(frozen=True)
class Case:
    """A hostile program, and how its run has to end.

    `says` are lines that it prints once it has done what it is there for, `hangs` is what the log says that it is doing
    when it is stopped. A line that begins with BROKEN says that it
    got what it may not have.
    """

    program: str
    exit: int = 1
    reason: str = "the program ended with 0 and left no out/result.json"
    says: tuple[str, ...] = ()
    hangs: str | None = None
    run: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.program


@dataclass(frozen=True)
class Seen:
    """What was left of the program when the gateway was told the end, what was said of it, and what memory it took."""

    driver: Driver
    stub: Stub
    left: list[str]
    grown_kib: int

    @property
    def output(self) -> list[str]:
        return [line["text"] for line in self.driver.named("program.output")]

    @property
    def ends(self) -> list[tuple[int | None, str | None]]:
        """The exit and the reason as the log, the stub's `end`, and the result, which has no reason, tell them."""
        logged = self.driver.named("run.ended")[0]
        (_, _, told), *_ = self.stub.state.ends
        result = self.stub.state.results.newest("run-1")
        return [
            (logged["exit"], logged["reason"]),
            (told.exit, told.reason),
            (result and result.exit, logged["reason"]),
        ]


async def attack(directory: Path, case: Case, user: str) -> Seen:
    """The driver's end of the program, seen from outside of its container."""
    uid, gid = USERS[user]
    program = shlex.join([sys.executable, "-I", "-S", str(PROGRAMS / f"{case.program}.py")])
    settings = environment({"DRIVER_PROGRAM_REVIEW": program, **TIGHT, **case.settings})
    async with running_stub(scenario(run=dict(case.run))) as stub:
        command = contained(directory, uid=uid, gid=gid)
        async with driving(stub, directory, command=command, **settings) as driver:
            with anyio.fail_after(_MOST_SECONDS):
                await driver.wait_event("program.started", level="info")
                inside = pid_1(driver.process.pid)
                before = status_kib(inside, "VmRSS")
                namespace = os.readlink(f"/proc/{inside}/ns/pid")
                await stub.wait_for(lambda: asked_to_end(stub))
                left = [pid for pid in members(namespace) if int(pid) != inside]
                most = status_kib(inside, "VmHWM")
                await driver.wait_event("run.ended")
    return Seen(driver, stub, left, most - before)


def asked_to_end(stub: Stub) -> bool:
    """Whether `end` has come, answered or not."""
    return any(str(entry.fields["path"]).endswith("/end") for entry in stub.state.journal.named("request.received"))


def status_kib(pid: int, name: str) -> int:
    """A line of /proc/PID/status (proc_pid_status(5))."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise AssertionError(f"/proc/{pid}/status has no {name}")
