"""How the token gets from the container's environment into the driver without staying readable."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from driver import handover

ENTRYPOINT = Path(__file__).parents[2] / "entrypoint.sh"
TOKEN = "sandbox-token-0123456789"
TIMEOUT = 20

SHELLS = [["sh"], ["dash"], ["bash"], ["bash", "--posix"], ["busybox", "sh"]]

# Stands in for the driver: shows what the kernel shows of it, then reads its token as the driver does.
STAND_IN = """\
import json, os
shown = {
    "pid": os.getpid(),
    "environ": open("/proc/self/environ").read(),
    "cmdline": open("/proc/self/cmdline").read().split("\\0")[:-1],
    "variables": dict(os.environ),
    "token": None,
}
file = os.environ.get("HEPHAESTUS_SANDBOX_TOKEN_FILE", "")
if file.startswith("/dev/fd/"):
    with os.fdopen(int(file[8:])) as handed_over:
        shown["token"] = handed_over.read()
print(json.dumps(shown))
"""

REEXEC = "from driver import handover; handover.take_token_out_of_environment()\n"


@dataclass(frozen=True)
class Started:
    """A program that was started: what it showed of itself, its exit code and its errors."""

    shown: dict[str, Any]
    code: int
    errors: str


def start(command: Sequence[str], environment: Mapping[str, str]) -> Started:
    """Run a command with nothing else in its environment."""
    done = subprocess.run(
        command, env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True, timeout=TIMEOUT
    )
    return Started(json.loads(done.stdout) if done.stdout else {}, done.returncode, done.stderr)


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """An interpreter to start in the driver's place."""
    return script(tmp_path / "interpreter", STAND_IN)


def script(path: Path, code: str) -> Path:
    path.write_text(f"#!{sys.executable} -I\n{code}")
    path.chmod(0o755)
    return path


@pytest.fixture(params=SHELLS, ids=" ".join)
def shell(request: pytest.FixtureRequest) -> list[str]:
    """A shell that may be the image's /bin/sh."""
    words: list[str] = request.param
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    return words


@pytest.mark.parametrize(
    "token",
    [
        TOKEN,
        "$(id)`id`${HOME}\\n\\\\'\"#!*?~<&;|",
        "t" * 5_000,  # more than a shell writes into a pipe itself: it forks a writer, or uses a file
        "t" * 16_384,
    ],
    ids=["plain", "special", "long", "longest"],
)
def test_entrypoint_hands_over(shell: list[str], stand_in: Path, token: str) -> None:
    """In every shell the token arrives on a descriptor, to the byte, and stands nowhere in /proc."""
    environment = {"HEPHAESTUS_SANDBOX_TOKEN": token, "DRIVER_PYTHON": str(stand_in), "token": "exported before"}
    started = start([*shell, str(ENTRYPOINT), "--flag", "two words"], environment)
    assert (started.code, started.errors) == (0, "")
    assert started.shown["token"].strip() == token
    assert token not in started.shown["environ"]
    assert token not in "\0".join(started.shown["cmdline"])
    assert started.shown["cmdline"][2:] == [str(stand_in), "-I", "-m", "driver", "--flag", "two words"]
    assert started.shown["variables"]["HEPHAESTUS_SANDBOX_TOKEN_FILE"] == "/dev/fd/3"
    assert not {"HEPHAESTUS_SANDBOX_TOKEN", "DRIVER_PYTHON", "token"} & started.shown["variables"].keys()


def test_entrypoint_is_executable(stand_in: Path) -> None:
    """The file starts by itself, and what it starts has its process id."""
    with subprocess.Popen(
        [str(ENTRYPOINT)],
        env={"PATH": os.environ["PATH"], "HEPHAESTUS_SANDBOX_TOKEN": TOKEN, "DRIVER_PYTHON": str(stand_in)},
        stdout=subprocess.PIPE,
    ) as process:
        assert json.loads(process.communicate(timeout=TIMEOUT)[0])["pid"] == process.pid


def test_entrypoint_prints_no_trace(shell: list[str], stand_in: Path) -> None:
    """A shell that was told to trace what it does does not print the token."""
    environment = {"HEPHAESTUS_SANDBOX_TOKEN": TOKEN, "DRIVER_PYTHON": str(stand_in)}
    started = start([*shell, "-x", str(ENTRYPOINT)], environment)
    assert started.code == 0
    assert TOKEN not in started.errors


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"HEPHAESTUS_SANDBOX_TOKEN": ""},
        {"HEPHAESTUS_SANDBOX_TOKEN_FILE": "/a/file"},
        {"HEPHAESTUS_SANDBOX_TOKEN_FILE": "/a/file", "HEPHAESTUS_SANDBOX_TOKEN": TOKEN},
    ],
    ids=["none", "empty", "file", "both"],
)
def test_entrypoint_leaves_the_rest_to_the_driver(stand_in: Path, settings: dict[str, str]) -> None:
    """Without a token, with a file or with both, the driver starts with just these settings, to report on them."""
    started = start([str(ENTRYPOINT)], {"DRIVER_PYTHON": str(stand_in), **settings})
    assert started.code == 0
    given = {k: v for k, v in started.shown["variables"].items() if k.startswith("HEPHAESTUS_")}
    assert given == settings


def test_entrypoint_without_interpreter() -> None:
    """An interpreter that is not there is one line that names it, and the shell's exit code for it."""
    started = start([str(ENTRYPOINT)], {"HEPHAESTUS_SANDBOX_TOKEN": TOKEN, "DRIVER_PYTHON": "/no/python3"})
    assert started.code == 127
    assert "/no/python3" in started.errors
    assert TOKEN not in started.errors


def pid_1(environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """The entrypoint as PID 1 of a namespace of its own; its exit code is the exit code of what is returned."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("being PID 1 needs root and unshare")
    return subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", str(ENTRYPOINT)],
        env={"PATH": os.environ["PATH"], "HEPHAESTUS_SANDBOX_TOKEN": TOKEN, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def only_child(process: subprocess.Popen[str]) -> int:
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_sigterm_before_the_exec(tmp_path: Path, stand_in: Path) -> None:
    """As PID 1, a stop that comes before the driver is started ends the entrypoint with 0; no driver starts."""
    slow = tmp_path / "bin"
    slow.mkdir()
    script(slow / "env", "import sys; print('in env', flush=True); sys.stdin.readline()")
    path = f"{slow}:{os.environ['PATH']}"
    with pid_1({"DRIVER_PYTHON": str(stand_in), "PATH": path}) as process:
        assert next_line(process) == "in env"
        os.kill(only_child(process), signal.SIGTERM)
        rest, _ = process.communicate("go on\n", timeout=TIMEOUT)
    assert (process.returncode, rest) == (0, "")


def test_sigterm_while_the_driver_starts(tmp_path: Path) -> None:
    """As PID 1, a stop that comes before the driver has a handler waits until it has one."""
    if subprocess.run(["env", "--block-signal=TERM", "true"], stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("this env cannot block signals")
    starting = script(
        tmp_path / "interpreter",
        "import signal, sys\n"
        "print('starting', flush=True)\n"
        "sys.stdin.readline()\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])\n",
    )
    with pid_1({"DRIVER_PYTHON": str(starting)}) as process:
        assert next_line(process) == "starting"
        os.kill(only_child(process), signal.SIGTERM)
        process.communicate("go on\n", timeout=TIMEOUT)
    assert process.returncode == 7


def test_reexec() -> None:
    """A driver that was started with the token in its environment becomes one that was not, under the same pid."""
    code = REEXEC + STAND_IN
    with subprocess.Popen(
        [sys.executable, "-I", "-c", code, "argument"],
        env={"HEPHAESTUS_SANDBOX_TOKEN": TOKEN, "KEPT": "yes"},
        stdout=subprocess.PIPE,
    ) as process:
        shown = json.loads(process.communicate(timeout=TIMEOUT)[0])
    assert shown["pid"] == process.pid
    assert shown["token"] == TOKEN
    assert TOKEN not in shown["environ"]
    assert shown["variables"]["KEPT"] == "yes"
    assert shown["cmdline"] == [sys.executable, "-I", "-c", code, "argument"]


def test_reexec_of_an_unusual_start() -> None:
    """Neither a made-up program name nor an interpreter found by PATH keeps the driver from replacing itself."""
    directory, name = os.path.split(sys.executable)
    done = subprocess.run(
        [name, "-c", REEXEC + STAND_IN],
        executable=sys.executable,
        env={"HEPHAESTUS_SANDBOX_TOKEN": TOKEN, "PATH": directory},
        capture_output=True,
        timeout=TIMEOUT,
    )
    assert json.loads(done.stdout)["token"] == TOKEN


def test_settings_read_what_was_handed_over() -> None:
    """The settings find the token after the exec, and its descriptor is gone then."""
    code = REEXEC + (
        "import os; from driver import settings\n"
        "print(settings.read(os.environ).token)\n"
        "print(os.path.exists(os.environ['HEPHAESTUS_SANDBOX_TOKEN_FILE']))\n"
    )
    environment = {
        "HEPHAESTUS_SANDBOX_TOKEN": TOKEN,
        "HEPHAESTUS_GATEWAY_URL": "http://127.0.0.1:1",
        "DRIVER_ISOLATION": "off",
    }
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], env=environment, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert (done.stdout.split(), done.stderr) == ([TOKEN, "False"], "")


@pytest.mark.parametrize("file", [None, "/a/file"])
def test_nothing_to_take(monkeypatch: pytest.MonkeyPatch, file: str | None) -> None:
    """Without a token in the environment, or with a file as well (a wrong setting), nothing happens."""
    monkeypatch.delenv("HEPHAESTUS_SANDBOX_TOKEN", raising=False)
    monkeypatch.delenv("HEPHAESTUS_SANDBOX_TOKEN_FILE", raising=False)
    if file is not None:
        monkeypatch.setenv("HEPHAESTUS_SANDBOX_TOKEN_FILE", file)
        monkeypatch.setenv("HEPHAESTUS_SANDBOX_TOKEN", TOKEN)
    before = dict(os.environ)
    handover.take_token_out_of_environment()
    assert dict(os.environ) == before


def test_token_that_does_not_fit() -> None:
    """A token larger than a pipe is refused at once with one line that names the setting, not the token."""
    code = (
        "import os; from driver import errors, handover\n"
        "try: handover.take_token_out_of_environment()\n"
        "except errors.SettingsError as error: print(*error.problems)\n"
        "print('HEPHAESTUS_SANDBOX_TOKEN' in os.environ, len(os.listdir('/proc/self/fd')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        env={"HEPHAESTUS_SANDBOX_TOKEN": "t" * 70_000},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    problem, rest = done.stdout.splitlines()
    assert problem.startswith("HEPHAESTUS_SANDBOX_TOKEN: cannot be taken out of the environment (it does not fit")
    assert "tttt" not in problem
    assert rest == "False 4"


def test_held_stop_outlives_the_reexec() -> None:
    """A stop that came before the driver replaced itself is delivered when the handler is there, not earlier."""
    code = (
        "import os, signal; from driver import handover\n"
        "handover.hold_stop_signals()\n"
        "if 'HEPHAESTUS_SANDBOX_TOKEN' in os.environ: os.kill(os.getpid(), signal.SIGTERM)\n"
        "handover.take_token_out_of_environment()\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('handled'))\n"
        "print('starting')\n"
        "handover.release_stop_signals()\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        env={"HEPHAESTUS_SANDBOX_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert (done.stdout.splitlines(), done.stderr) == (["starting", "handled", "set()"], "")


def test_imports_next_to_nothing() -> None:
    """The module runs before everything else, so at its top it imports os and sys only."""
    tree = ast.parse(Path(handover.__file__).read_text())
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in imports] == ["import os", "import sys"]
