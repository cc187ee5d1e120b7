"""What the kernel holds programs to, shown by programs that try."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from driver.errors import HardeningFailed
from driver.kind import ProgramEnd
from driver.process import landlock
from driver.process.confinement import NICE, OOM_SCORE, OPEN_FILES
from driver.process.limits import ProgramLimits
from tests.driver.process.conftest import PYTHON, Bench

pytestmark = pytest.mark.anyio

MIB = 1 << 20
TRIES = """
import os, sys
def tried(what, *arguments):
    try:
        what(*arguments)
        print(what.__name__, "ok")
    except OSError as error:
        print(what.__name__, error.strerror)
def write(path):
    with open(path, "wb") as file:
        file.write(b"x")
def append(path):
    with open(path, "ab") as file:
        file.write(b"x")
"""

LIMITED = 'while [ "$(ulimit -f)" = unlimited ]; do :; done'

needs_landlock = pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")


async def prints(bench: Bench, script: str, *arguments: object) -> list[str]:
    end = await bench.runner().run([*PYTHON, TRIES + script, *map(str, arguments)], cwd=bench.layout.root)
    assert end == ProgramEnd(0), bench.recorded.text("stderr")
    return bench.recorded.text()


@needs_landlock
async def test_writes_only_where_it_may(bench: Bench) -> None:
    """Below work/, out/ and .sessions/ everything can be made, moved and removed; devices take bytes."""
    script = """
    for place in ("work", "out", ".sessions", os.environ["TMPDIR"]):
        tried(write, place + "/file")
        tried(append, place + "/file")
        tried(os.truncate, place + "/file", 0)
        tried(os.mkdir, place + "/directory")
        tried(os.symlink, "nowhere", place + "/link")
        tried(os.mkfifo, place + "/fifo")
        tried(os.rename, place + "/file", place + "/directory/file")
        tried(os.unlink, place + "/directory/file")
        tried(os.rmdir, place + "/directory")
    tried(write, "work/one")
    tried(os.rename, "work/one", "out/one")
    tried(write, "/dev/null")
    """
    told = await prints(bench, f"if True:{script}")
    assert len(told) == 39
    assert {line.split(" ", 1)[1] for line in told} == {"ok"}
    assert (bench.layout.out / "one").read_bytes() == b"x"


@needs_landlock
async def test_inputs_and_all_else_stay_as_they_are(bench: Bench, tmp_path: Path) -> None:
    """Not even root can change, replace, remove or add an input, or anything outside of the workspace."""
    elsewhere = tmp_path / "elsewhere"
    for place in (bench.layout.inputs, elsewhere):
        place.mkdir()
        (place / "file").write_text("kept")
    script = """
    for place in sys.argv[1:]:
        file = place + "/file"
        tried(write, file)
        tried(append, file)
        tried(os.truncate, file, 0)
        tried(write, place + "/new")
        tried(os.mkdir, place + "/directory")
        tried(os.symlink, "nowhere", place + "/link")
        tried(os.link, file, "work/linked")
        tried(os.rename, file, "work/taken")
        tried(os.rename, "work", place + "/work")
        tried(os.unlink, file)
    os.symlink(sys.argv[1], "work/way")
    tried(write, "work/way/file")
    """
    told = await prints(bench, f"if True:{script}", bench.layout.inputs, elsewhere)
    assert len(told) == 21
    assert {line.split(" ", 1)[1] for line in told} <= {"Permission denied", "Invalid cross-device link"}
    for place in (bench.layout.inputs, elsewhere):
        assert {path.name: path.read_text() for path in place.iterdir()} == {"file": "kept"}


@needs_landlock
async def test_what_it_starts_is_confined_too(bench: Bench, tmp_path: Path) -> None:
    """A descendant that left the group and the session has no more rights than the program."""
    (bench.layout.inputs).mkdir()
    script = f"setsid sh -c 'echo x > {bench.layout.inputs}/new' & wait $!; test ! -e {bench.layout.inputs}/new"
    assert (await bench.runner().run(["sh", "-c", script], cwd=bench.layout.root)).exit == 0
    assert any("ermission denied" in line for line in bench.recorded.text("stderr"))


@pytest.mark.skipif(landlock.version() < 6, reason="this kernel's Landlock does not scope signals")
async def test_it_cannot_signal_the_driver(bench: Bench) -> None:
    """A program of the same user, root even, cannot end the driver; its own processes it can."""
    script = """
    tried(os.kill, int(sys.argv[1]), 0)
    child = os.fork()
    if child == 0:
        import signal
        signal.pause()
    tried(os.kill, child, 9)
    """
    told = await prints(bench, f"if True:{script}", os.getpid())
    assert told == ["kill Operation not permitted", "kill ok"]


async def test_no_new_privileges(bench: Bench) -> None:
    """No exec of a program gains rights, and the driver itself is as it was."""
    before = Path("/proc/self/status").read_text()
    told = await prints(bench, "print(*(l for l in open('/proc/self/status') if l.startswith('NoNewPrivs')))")
    assert [line.split() for line in told] == [["NoNewPrivs:", "1"]]
    assert [line for line in before.splitlines() if line.startswith("NoNewPrivs")] == [
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("NoNewPrivs")
    ]


async def test_it_is_nicer_than_the_driver(bench: Bench) -> None:
    """A program gets less of a busy CPU than the driver, and is ended first when memory is short."""
    script = f"""
    print(os.getpriority(os.PRIO_PROCESS, 0))
    while open('/proc/self/oom_score_adj').read().strip() != '{OOM_SCORE}':
        pass
    """
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert await prints(bench, f"if True:{script}") == [str(min(19, own + NICE))]
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


async def test_a_file_that_grows_too_long_ends_the_program(bench: Bench) -> None:
    """A program whose file passes the bound ends with 153 and the reason, in the end and in the log."""
    bench.limits = ProgramLimits(memory=None, disk=MIB, processes=64)
    end = await bench.runner().run(
        ["sh", "-c", f"{LIMITED}; exec head -c 1048577 /dev/zero > work/long"], cwd=bench.layout.root
    )
    assert end == ProgramEnd(153, "file_size")
    assert [(r["exit"], r["reason"]) for r in bench.recorded.of("program.ended")] == [(153, "file_size")]
    assert (bench.layout.work / "long").stat().st_size == MIB
    assert await bench.runner().run(["sh", "-c", "exit 153"], cwd=bench.layout.root) == ProgramEnd(153)


async def test_open_files_and_core_files_are_bounded(bench: Bench) -> None:
    """A program may have as many files open as the bound, or the container's own if that is lower."""
    script = """
    import resource, time
    deadline = time.monotonic() + 10
    while resource.getrlimit(resource.RLIMIT_NOFILE)[1] > int(sys.argv[1]) and time.monotonic() < deadline:
        pass
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert await prints(bench, f"if True:{script}", OPEN_FILES) == [str(min(hard, OPEN_FILES))]


async def test_lower_limits_of_its_own_stay(bench: Bench) -> None:
    """A program that lowers its limits in its first moment keeps them, however that falls in with ours."""
    script = "ulimit -n 50; ulimit -f 100; ulimit -n; ulimit -f"
    for _ in range(30):
        await bench.runner().run(["sh", "-c", script], cwd=bench.layout.root)
    assert bench.recorded.text() == ["50", "100"] * 30


WITHOUT_LANDLOCK = """
import ctypes, errno, struct, subprocess, sys
from pathlib import Path
from driver.process.confinement import Confinement

# A seccomp filter: syscall 444 fails with ENOSYS, as on a kernel without Landlock; everything else is allowed.
steps = (0x20, 0, 0, 0), (0x15, 0, 1, 444), (6, 0, 0, 0x50000 | errno.ENOSYS), (6, 0, 0, 0x7FFF0000)
program = b"".join(struct.pack("HBBI", *step) for step in steps)
code = ctypes.create_string_buffer(program)
filter = struct.pack("HxxxxxxQ", 4, ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_char_p(filter), 0, 0) == 0
from driver.process import landlock
print(landlock.version())
confinement = Confinement((), file_bytes=1 << 20)
print(confinement.start(lambda: subprocess.call(["sh", "-c", f"echo x > {sys.argv[1]}"])))
"""


def test_without_landlock_the_rest_holds(tmp_path: Path) -> None:
    """Where the kernel has no Landlock a program runs all the same."""
    command = [sys.executable, "-c", WITHOUT_LANDLOCK, str(tmp_path / "written")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("0\n0\n", 0), done.stderr
    assert (tmp_path / "written").read_text() == "x\n"


@needs_landlock
async def test_a_hidden_file_cannot_be_read(bench: Bench, tmp_path: Path) -> None:
    """By no name: not its own, nor through links, nor as a hard link. What stands beside it can be read."""
    secrets = tmp_path / "secrets"
    (secrets / "now").mkdir(parents=True)
    (secrets / "now" / "token").write_text("hidden")
    (secrets / "token").symlink_to("now/token")
    (secrets / "beside").write_text("shown")
    script = """
    def read(path):
        with open(path) as file:
            print(file.read())
    for path in ("token", "now/token", "beside"):
        tried(read, sys.argv[1] + "/" + path)
    os.symlink(sys.argv[1] + "/now/token", "work/link")
    tried(read, "work/link")
    tried(os.link, sys.argv[1] + "/now/token", "work/hard")
    tried(os.rename, sys.argv[1] + "/now/token", "work/taken")
    print(os.listdir(sys.argv[1] + "/now"), os.system("cat " + sys.argv[1] + "/token") != 0)
    with open("work/own", "w") as file:
        file.write("own")
    tried(read, "work/own")
    """
    runner = bench.runner(hidden=(secrets / "token",))
    end = await runner.run([*PYTHON, TRIES + f"if True:{script}", str(secrets)], cwd=bench.layout.root)
    assert end == ProgramEnd(0), bench.recorded.text("stderr")
    told = bench.recorded.text()
    assert told[:2] == ["read Permission denied"] * 2
    assert told[2:5] == ["shown", "read ok", "read Permission denied"]
    assert {line.split(" ", 1)[1] for line in told[5:7]} <= {"Permission denied", "Invalid cross-device link"}
    assert told[7:] == ["['token'] True", "own", "read ok"]


def test_too_much_beside_a_hidden_file(tmp_path: Path) -> None:
    """A directory with more entries than can be named is told, and nothing is started."""
    for number in range(4097):
        (tmp_path / str(number)).touch()
    with pytest.raises(HardeningFailed, match=r"has more than 4,096 entries"):
        landlock.all_but([tmp_path / "token"])
    (tmp_path / "0").unlink()
    assert len(landlock.all_but([tmp_path / "token"])) >= 4096
