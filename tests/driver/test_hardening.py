"""What a process of the same user can read of the driver, and what the driver can still do when it is hidden."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from driver.hardening import exposed_to

TOKEN = "sandbox-token-0123456789"
NOBODY = 65534
TIMEOUT = 20

# Becomes an ordinary user where it is root; everything is imported before, as that user may not reach the interpreter.
AS_NOBODY = f"""
import ctypes, json, os, resource, subprocess, sys
import psutil
from driver import hardening
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # a change of user has made it undumpable already
os.chdir("/")
"""
HOLD = "print('ready', flush=True); sys.stdin.read()\n"
HIDE = "hardening.make_undumpable()\n"

LOOK_AROUND = """
def attempt(action):
    try:
        return action()
    except Exception as error:
        return type(error).__name__

def read(path):
    with open(path, "rb") as file:
        return len(file.read())

def write(path, text):
    with open(path, "w") as file:
        return file.write(text)

child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True)
child.stdin.write(b"past the exec")
child.stdout.read(4)
below = f"/proc/{child.pid}"
seen = {
    "child environ": attempt(lambda: read(below + "/environ") > 0),
    "child stat": attempt(lambda: read(below + "/stat") > 0),
    "child descriptors": attempt(lambda: len(os.listdir(below + "/fd")) >= 3),
    "child oom_score_adj": attempt(lambda: write(below + "/oom_score_adj", "500")),
    "children": attempt(lambda: [c.pid for c in psutil.Process().children(recursive=True)] == [child.pid]),
    "child memory": attempt(lambda: psutil.Process(child.pid).memory_info().rss > 0),
    "own memory": attempt(lambda: psutil.Process().memory_info().rss > 0),
    "own descriptors": attempt(lambda: len(os.listdir("/proc/self/fd")) >= 3),
    "own status": attempt(lambda: read("/proc/self/status") > 0),
    "own oom_score_adj": attempt(lambda: write("/proc/self/oom_score_adj", "500")),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
}
child.terminate()
seen["child's end"] = child.wait()
print(json.dumps(seen))
"""


@contextmanager
def holder(code: str) -> Iterator[int]:
    """The pid of a process of an ordinary user with the token in its environment, as the driver once had."""
    with subprocess.Popen(
        [sys.executable, "-I", "-c", AS_NOBODY + code + HOLD],
        env={"TOKEN": TOKEN},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid


def as_its_user(*command: str) -> subprocess.CompletedProcess[str]:
    who: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT, cwd="/", **who)


@pytest.mark.parametrize("file", ["environ", "maps", "auxv", "mem"])
def test_hidden_from_its_own_user(file: str) -> None:
    """A process of the same user that could read this file of the driver cannot once the driver is undumpable."""
    with holder("") as readable:
        before = as_its_user("cat", f"/proc/{readable}/{file}")
        # There is nothing at the first address of `mem`: that it could be opened is what counts.
        assert before.stdout or "Input/output error" in before.stderr
        assert (TOKEN in before.stdout) is (file == "environ")
    with holder(HIDE) as hidden:
        after = as_its_user("cat", f"/proc/{hidden}/{file}")
    assert (after.returncode, after.stdout) == (1, "")
    assert "Permission denied" in after.stderr


def test_descriptors_are_hidden_too() -> None:
    """Nor can it list or open the driver's descriptors, the handed-over token among them."""
    with holder("") as readable:
        assert as_its_user("ls", f"/proc/{readable}/fd").returncode == 0
    with holder(HIDE) as hidden:
        assert "Permission denied" in as_its_user("ls", f"/proc/{hidden}/fd").stderr
        assert "Permission denied" in as_its_user("cat", f"/proc/{hidden}/fd/0").stderr


def test_what_still_works_when_hidden() -> None:
    """As an ordinary user the hidden driver starts, watches and ends children as before, and leaves no core file."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", AS_NOBODY + HIDE + LOOK_AROUND],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.stderr == ""
    assert json.loads(done.stdout) == {
        "child environ": True,
        "child stat": True,
        "child descriptors": True,
        "child oom_score_adj": 3,
        "children": True,
        "child memory": True,
        "own memory": True,
        "own descriptors": True,
        "own status": True,
        "own oom_score_adj": "PermissionError",
        "core": [0, 0],
        "child's end": -15,
    }


def test_kernel_that_tells_little() -> None:
    """A kernel that shows no capabilities in its status is no fault of the driver's."""
    assert exposed_to(status="Name:\tpython3\nState:\tR (running)\n", code=()) is None


def status(uid: int, *, effective: int = 0, permitted: int = 0, bounding: int = 0) -> str:
    return (
        f"Name:\tpython3\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapInh:\t0000000000000000\n"
        f"CapPrm:\t{permitted:016x}\nCapEff:\t{effective:016x}\nCapBnd:\t{bounding:016x}\nCapAmb:\t0000000000000000\n"
    )


ALL = (1 << 41) - 1
# What container runtimes leave to a root container that asks for nothing.
RUNTIME_DEFAULT = 0x00000000A80425FB


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (status(1000), None),
        (status(1000, bounding=ALL), None),  # an exec as an ordinary user gains nothing
        (status(0, effective=RUNTIME_DEFAULT, permitted=RUNTIME_DEFAULT, bounding=RUNTIME_DEFAULT), None),
        (status(0, effective=ALL, permitted=ALL, bounding=ALL), "CAP_SYS_PTRACE"),
        (status(0, bounding=ALL), "CAP_SYS_PTRACE"),  # an exec as root gives them back
        (status(1000, effective=1 << 19, permitted=1 << 19), "CAP_SYS_PTRACE"),
        (status(1000, permitted=1 << 21), "CAP_SYS_ADMIN"),
        (status(1000, effective=1 << 38), "CAP_PERFMON"),
    ],
)
def test_exposed_to_capabilities(text: str, expected: str | None) -> None:
    """A capability that leads past the dumpable attribute, held or to be had by an exec, is named in one sentence."""
    reason = exposed_to(status=text, code=())
    assert reason is None if expected is None else reason is not None and expected in reason


@pytest.mark.parametrize(("file", "exposed"), [(None, False), (Path("/run/secrets/token"), True)])
def test_exposed_by_a_file(file: Path | None, exposed: bool) -> None:
    """A token file that programs can read is told."""
    reason = exposed_to(file, status=status(1000), code=())
    assert (reason is not None and "HEPHAESTUS_SANDBOX_TOKEN_FILE" in reason) is exposed


@pytest.mark.parametrize(
    ("url", "text", "expected"),
    [
        ("http://10.0.0.1", status(0, bounding=RUNTIME_DEFAULT), "CAP_NET_RAW"),
        ("HTTP://10.0.0.1", status(1000, effective=1 << 12), "CAP_NET_ADMIN"),
        ("http://10.0.0.1", status(1000, bounding=RUNTIME_DEFAULT), None),
        ("https://10.0.0.1", status(0, bounding=RUNTIME_DEFAULT), None),
    ],
)
def test_exposed_on_the_wire(url: str, text: str, expected: str | None) -> None:
    """Without TLS, a capability that lets programs see or redirect what the driver sends is named."""
    reason = exposed_to(None, url, status=text, code=())
    assert reason is None if expected is None else reason is not None and expected in reason


def test_exposed_by_its_own_code(tmp_path: Path) -> None:
    """Where programs can write to what the driver imports, the next import would be theirs: that is told."""
    missing = str(tmp_path / "missing")
    assert exposed_to(status=status(1000), code=[missing]) is None
    reason = exposed_to(status=status(1000), code=[missing, str(tmp_path)])
    assert reason is not None
    assert f"can write to {tmp_path}," in reason


def test_exposed_reads_this_process() -> None:
    """Without a text it looks at the process itself: what the kernel shows of it can be understood."""
    reason = exposed_to()
    assert reason is None or "programs can" in reason
