"""A run's programs: what they are given, how they end, and that nothing of them is left."""

import errno
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from driver.errors import ProgramError
from driver.kind import ProgramEnd, Programs
from driver.process.environment import DoorAddress
from driver.process.limits import ProgramLimits
from driver.process.programs import ProgramRunner
from tests.driver.process.conftest import PYTHON, Bench
from tests.e2e.contained import contained, needs_root

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
KEY = "door-key-2fe7c1a9"


async def run(bench: Bench, *argv: str, **options: Any) -> ProgramEnd:
    return await bench.runner().run(argv, cwd=bench.layout.root, **options)


async def sh(bench: Bench, script: str, **options: Any) -> ProgramEnd:
    return await run(bench, "sh", "-c", script, **options)


def gone(pids: Sequence[str]) -> bool:
    return bool(pids) and not any(psutil.pid_exists(int(pid)) for pid in pids)


def test_is_programs(bench: Bench) -> None:
    """A runner is what a kind expects by type."""
    programs: Programs = bench.runner()
    assert isinstance(programs, ProgramRunner)


async def test_log_lines(bench: Bench) -> None:
    """Start, output of both streams and end are logged, in this order."""
    assert await sh(bench, "echo one; echo two >&2; exit 3") == ProgramEnd(3)
    records = bench.recorded.records
    assert [record["event"] for record in records] == [
        "program.started",
        "program.output",
        "program.output",
        "program.ended",
    ]
    assert records[0]["program"] == "sh"
    assert records[0]["pid"] > 0
    assert (bench.recorded.text("stdout"), bench.recorded.text("stderr")) == (["one"], ["two"])
    assert records[-1]["exit"] == 3
    assert "reason" not in records[-1]
    assert 0 <= records[-1]["seconds"] < 10


async def test_signals(bench: Bench) -> None:
    """A program that a signal n ended has the exit 128 + n."""
    assert await sh(bench, "kill -SEGV $$") == ProgramEnd(139)


async def test_exact_environment(bench: Bench) -> None:
    """The program's environment equals an exact list, in the kernel's own words."""
    bench.door = lambda: DoorAddress("http://127.0.0.1:4000", KEY)
    script = "print(*sorted(open('/proc/self/environ').read().split(chr(0))[:-1]), sep=chr(10))"
    await run(bench, *PYTHON, script, environment={"PRECOMPUTE": "1"}, door=True)
    root = bench.layout.root
    assert bench.recorded.text() == [
        f"ANTHROPIC_API_KEY={KEY}",
        "ANTHROPIC_BASE_URL=http://127.0.0.1:4000",
        f"DRIVER_DOOR_KEY={KEY}",
        "DRIVER_DOOR_URL=http://127.0.0.1:4000",
        "DRIVER_MODEL=model-1",
        "DRIVER_RUN_ATTEMPT=2",
        "DRIVER_RUN_ID=run-1",
        "DRIVER_RUN_KIND=REVIEW",
        f"DRIVER_WORKSPACE={root}",
        "DRIVER_WORK_SECONDS=90",
        f"HOME={root}/work/home",
        "LANG=C.UTF-8",
        f"OPENAI_API_KEY={KEY}",
        "OPENAI_BASE_URL=http://127.0.0.1:4000/v1",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PRECOMPUTE=1",
        f"TMPDIR={root}/work/tmp",
        "TZ=UTC",
    ]


async def test_door_is_given_only_when_asked_for(bench: Bench) -> None:
    """A program that does not ask for the door does not get its key."""
    bench.door = lambda: DoorAddress("http://127.0.0.1:4000", KEY)
    await sh(bench, "env")
    assert not any("DOOR" in line or KEY in line for line in bench.recorded.text())


async def test_closed_door(bench: Bench) -> None:
    """A program that asks for a door that is closed is not started."""
    with pytest.raises(ProgramError, match="while the door is closed"):
        await sh(bench, "exit 0", door=True)
    assert bench.recorded.records == []


async def test_no_secret_is_handed_over(bench: Bench) -> None:
    """A secret in the arguments, where every process can read it, or in the environment is refused."""
    bench.recorded.log.secrets.add("sandbox-token-1")
    with pytest.raises(ProgramError, match="a secret may not be handed"):
        await run(bench, "echo", "Bearer sandbox-token-1")
    with pytest.raises(ProgramError, match="a secret may not be handed"):
        await run(bench, "env", environment={"TOKEN": "sandbox-token-1"})


async def test_masked(bench: Bench) -> None:
    """A secret that is written in pieces is masked in the log."""
    bench.recorded.log.secrets.add(KEY)
    script = f"import os\nfor c in 'key: {KEY[:5]}' '{KEY[5:]}.': os.write(1, c.encode())"
    await run(bench, *PYTHON, script)
    assert bench.recorded.text() == ["key: ***."]


async def test_stdout_to_a_file(bench: Bench) -> None:
    """With `stdout` the output goes to a new file, unchanged; stderr still goes to the log."""
    path = bench.layout.work / "output"
    assert await sh(bench, "printf 'a\\000b'; echo note >&2", stdout=path) == ProgramEnd(0)
    assert path.read_bytes() == b"a\0b"
    assert bench.recorded.text("stdout") == []
    assert bench.recorded.text("stderr") == ["note"]
    with pytest.raises(ProgramError, match="File exists"):
        await sh(bench, "echo again", stdout=path)


async def test_cannot_be_started(bench: Bench) -> None:
    """A program that does not exist is a ProgramError."""
    with pytest.raises(ProgramError, match="'no-such-program' cannot be started"):
        await run(bench, "no-such-program")


async def test_output_is_cut(bench: Bench) -> None:
    """After 4 MiB one line says so, over all programs of the run; the rest is read and counted, but for the ends."""
    runner = bench.runner()
    script = "import os\nfor _ in range(96): os.write(1, (b'x' * 1023 + b'\\n') * 64)"  # 6 MiB
    assert await runner.run([*PYTHON, script], cwd=Path("/")) == ProgramEnd(0)
    assert sum(len(text) for text in bench.recorded.text()) == (3971 + 32) * 1023
    assert await runner.run(["echo", "more"], cwd=Path("/")) == ProgramEnd(0)
    assert len(bench.recorded.text()) == 3971 + 32 + 1
    assert bench.recorded.text()[-1] == "more"
    assert [tail["lines"] for tail in bench.recorded.of("program.output_tail")] == [32, 1]
    (cut,) = bench.recorded.of("program.output_cut")
    assert cut["limit_bytes"] == 4 * MIB
    assert bench.recorded.of("program.ended")[0]["dropped_bytes"] > 1.9 * MIB


async def test_all_bytes_before_the_exit_are_kept(bench: Bench) -> None:
    """What was written before the exit is logged, though the pipe is full of it then."""
    script = "import os\nos.write(1, b'a line of output\\n' * 3800)\nos._exit(9)"
    assert await run(bench, *PYTHON, script) == ProgramEnd(9)
    assert bench.recorded.text() == ["a line of output"] * 3800


async def test_a_held_pipe_does_not_delay_the_end(bench: Bench) -> None:
    """A grandchild that holds the pipe, in another session, delays nothing and is gone."""
    start = time.monotonic()
    assert await sh(bench, "setsid sleep 60 & echo $!; exit 4") == ProgramEnd(4)
    assert time.monotonic() - start < 1
    assert gone(bench.recorded.text())


async def test_a_stolen_read_is_survived(bench: Bench) -> None:
    """A program that reads its own output through /proc does not break the reader."""
    script = (
        "import os\nfd = os.open('/proc/self/fd/1', os.O_RDONLY | os.O_NONBLOCK)\n"
        "for _ in range(3000):\n  os.write(1, b'x')\n  try: os.read(fd, 1)\n  except BlockingIOError: pass\n"
        "print(flush=True)\nprint('end')"
    )
    assert await run(bench, *PYTHON, script) == ProgramEnd(0)
    assert bench.recorded.text()[-1] == "end"


async def test_double_fork_is_gone(bench: Bench) -> None:
    """A daemon that left group and session and ignores signals is gone when `run` returns."""
    script = (
        "import os, signal, time\nif os.fork(): os.wait(); os._exit(0)\nos.setsid()\n"
        "if os.fork(): os._exit(0)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(os.getpid(), flush=True)\ntime.sleep(60)"
    )
    # The leader may be gone before the daemon has said its pid: the check is that nothing is left.
    assert await run(bench, *PYTHON, script) == ProgramEnd(0)
    assert psutil.Process().children(recursive=True) == [
        child for child in psutil.Process().children() if child.pid in bench.children.spared()
    ]


async def test_timeout(bench: Bench) -> None:
    """A time-out gives the grace and reads as exit 124, whatever the program's own exit was."""
    script = "trap 'echo saving; exit 7' TERM; while :; do sleep 0.01; done"
    assert await sh(bench, script, timeout=0.2) == ProgramEnd(124, "timeout")
    assert bench.recorded.text() == ["saving"]
    (ended,) = bench.recorded.of("program.ended")
    assert (ended["exit"], ended["reason"]) == (124, "timeout")


async def test_timeout_of_a_stubborn_program(bench: Bench) -> None:
    """A program that ignores SIGTERM is killed when the grace is over."""
    bench.grace = lambda: 0.2
    start = time.monotonic()
    assert await sh(bench, "trap '' TERM; sleep 60", timeout=0.1) == ProgramEnd(124, "timeout")
    assert time.monotonic() - start < 1.5


async def test_no_timeout_after_the_end(bench: Bench) -> None:
    """A program that ends in time keeps its exit."""
    assert await sh(bench, "exit 5", timeout=60) == ProgramEnd(5)


async def test_cancel_ends_the_tree(bench: Bench) -> None:
    """A cancel stops the program with its grace, and leaves nothing of the tree, however it is spread."""
    bench.grace = lambda: 0.3
    script = (
        "trap '' TERM; sleep 60 & echo $!; setsid sh -c 'trap \"\" TERM; sleep 60 & echo $!; wait' & echo $!;"
        " (setsid setsid sleep 60 & echo $!); echo ready; wait"
    )
    start = 0.0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sh, bench, script)
        while len(bench.recorded.text()) < 5:
            await bench.recorded.changed()
        start = time.monotonic()
        tasks.cancel_scope.cancel()
    assert time.monotonic() - start < 1.3
    pids = [text for text in bench.recorded.text() if text != "ready"]
    assert len(pids) == 4
    assert gone(pids)
    (ended,) = bench.recorded.of("program.ended")
    assert (ended["exit"], ended["reason"]) == (137, "stopped")


async def test_output_in_the_grace_is_kept(bench: Bench) -> None:
    """While a program is stopped its output is still read, be it more than a pipe holds."""
    script = (
        "import os, signal, sys, time\n"
        "def end(*_):\n  os.write(1, b'y' * 7999 + b'\\n' + (b'z' * 99 + b'\\n') * 3000)\n  os._exit(11)\n"
        "signal.signal(signal.SIGTERM, end)\nprint('ready', flush=True)\nwhile True: time.sleep(60)"
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: run(bench, *PYTHON, script))
        await bench.recorded.printed("ready")
        tasks.cancel_scope.cancel()
    assert len(bench.recorded.text()) == 3002
    assert bench.recorded.of("program.ended")[0]["exit"] == 11


async def test_cancelled_before_it_started(bench: Bench) -> None:
    """A run in a scope that is cancelled already leaves nothing either."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        await sh(bench, "sleep 60")
    assert len(bench.recorded.of("program.ended")) == 1


async def test_kill_skips_the_grace(bench: Bench) -> None:
    """`kill` ends a program that is using its grace at once."""
    bench.grace = lambda: 60.0
    runner = bench.runner()
    start = time.monotonic()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(
            lambda: runner.run(
                ["sh", "-c", "trap 'echo no' TERM; echo ready; while :; do sleep 0.01; done"], cwd=Path("/")
            )
        )
        await bench.recorded.printed("ready")
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await bench.recorded.printed("no")
        runner.kill()
    assert time.monotonic() - start < 5
    assert bench.recorded.of("program.ended")[0]["exit"] == 137


async def test_memory_limit(bench: Bench) -> None:
    """A tree that grows over the memory is killed: exit 137, reason `memory`, also for what left the tree."""
    bench.limits = ProgramLimits(memory=96 * MIB, disk=1 << 30, processes=512)
    script = "import os, time\nif os.fork(): time.sleep(60)\nos.setsid()\nheld = b'x' * (128 << 20)\ntime.sleep(60)"
    start = time.monotonic()
    assert await run(bench, *PYTHON, script) == ProgramEnd(137, "memory")
    assert time.monotonic() - start < 5
    (over,) = bench.recorded.of("program.over_limit")
    assert (over["reason"], over["limit"]) == ("memory", 96 * MIB)
    assert over["used"] > 96 * MIB


async def test_process_limit(bench: Bench) -> None:
    """Too many processes: exit 137, reason `processes`."""
    bench.limits = ProgramLimits(memory=None, disk=1 << 30, processes=10)
    script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 60 & done; wait"
    assert await sh(bench, script) == ProgramEnd(137, "processes")


async def test_disk_limit(bench: Bench) -> None:
    """Too many bytes below the writable directories: exit 137, reason `disk`."""
    bench.limits = ProgramLimits(memory=None, disk=MIB, processes=512)
    script = f"head -c 3000000 /dev/zero > {bench.layout.temporary}/big; sleep 60"
    assert await sh(bench, script) == ProgramEnd(137, "disk")


async def test_side_by_side(bench: Bench) -> None:
    """Programs of one run that run side by side do not end each other."""
    runner = bench.runner()
    ends: dict[int, ProgramEnd] = {}

    async def one(number: int) -> None:
        script = f"sleep 0.0{number} & sh -c 'sleep 0.1 & exit 0'; wait; sleep 0.0{number % 10}; exit {number}"
        ends[number] = await runner.run(["sh", "-c", script], cwd=Path("/"))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(one, number)
    assert ends == {number: ProgramEnd(number) for number in range(20)}


async def test_two_runs_leave_nothing_open(bench: Bench) -> None:
    """A run leaves no descriptor and no registered pid."""
    await sh(bench, "exit 0")
    before = os.listdir("/proc/self/fd")
    for _ in range(10):
        await sh(bench, "echo x")
    assert os.listdir("/proc/self/fd") == before
    assert bench.children.waited() == bench.children.spared()


async def test_a_fault_of_the_log_ends_the_program(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the driver itself fails while a program runs, the program is ended all the same."""

    def fail(_line: str) -> None:
        raise RuntimeError("no more log")

    monkeypatch.setattr(bench.recorded, "add", fail)
    with pytest.raises((RuntimeError, ExceptionGroup)):
        await sh(bench, "sleep 60")


async def test_a_fault_in_the_grace_ends_the_program(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the driver itself fails while it stops a program, out of descriptors say, the program is killed at once."""

    def fail(_pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("driver.process.child._wait_end", fail)
    with pytest.raises(ExceptionGroup, match="unhandled"):
        await sh(bench, "sh -c \"trap '' TERM; echo $$; sleep 60\" & wait", timeout=0.3)
    assert gone(bench.recorded.text())
    assert bench.children.waited() == bench.children.spared()


@pytest.mark.parametrize(
    "children", [100, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(300)])]
)
def test_as_pid_1(children: int) -> None:
    """As PID 1: 500 orphans leave no zombie after 2 s, short children keep their codes in a storm, nothing is left."""
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no new PID namespace may be made here")
    command = [*unshare, sys.executable, str(Path(__file__).with_name("as_pid_1.py")), str(children)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "zombies of orphans: 0\nwrong codes: []\nleft: []\n"), done.stderr


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("start", ["exec {}", "{}; exit"], ids=["pid-1", "subreaper"])
def test_fork_bomb(tmp_path: Path, start: str) -> None:
    """A bomb that uses up all processes, each in its own session, is over: 137, `processes`; the next one runs."""
    needs_root()
    script = shlex.join([sys.executable, str(Path(__file__).with_name("bombed.py"))])
    command = ["prlimit", "--nproc=180", "nice", "sh", "-c", start.format(script)]
    container = contained(tmp_path, uid=1000730005, gid=0, command=command)
    done = subprocess.run(container, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "137 processes []\n5 None []\n"), done.stderr


async def test_the_end_of_a_long_output(bench: Bench) -> None:
    """Head and tail are kept in their order, also where the cut is in the middle of a line."""
    script = "import os\nfor part in (b'first\\n', *[b'x' * (1 << 20)] * 6, b'\\nlast\\n'): os.write(1, part)"
    assert await run(bench, *PYTHON, script) == ProgramEnd(0)
    told = bench.recorded.text()
    assert (told[0], told[-1]) == ("first", "last")
    assert set("".join(told[1:-1])) == {"x"}
    assert sum(map(len, told)) + bench.recorded.of("program.ended")[0]["dropped_bytes"] == 6 * MIB + len(
        "first\nlast\n"
    )
