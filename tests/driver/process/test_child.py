"""A child is started exactly as told, and nobody returns before it is reaped."""

import os
import signal
import stat
import time
from pathlib import Path

import anyio
import psutil
import pytest

from driver.errors import ProgramError
from driver.process.child import Child
from driver.process.children import Children
from driver.process.orphans import sweep
from tests.driver.process.conftest import ANYWHERE, PYTHON

pytestmark = pytest.mark.anyio


def spawn(children: Children, *argv: str, cwd: Path = Path("/"), path: str = "/usr/bin:/bin") -> Child:
    return Child.spawn(argv, cwd=cwd, environment={"PATH": path}, children=children, confinement=ANYWHERE)


async def stop(child: Child, grace: float) -> int:
    await child.terminate(grace)
    return await finish(child)


async def finish(child: Child) -> int:
    child.kill()
    return await child.reap()


def close(child: Child) -> None:
    assert child.stdout is not None
    os.close(child.stdout)
    os.close(child.stderr)


def wait_for(pid: int, state: int) -> int:
    """Wait for a child to stop or end, and return the signal or code; with WNOWAIT it stays as it is."""
    result = os.waitid(os.P_PID, pid, state)
    assert result is not None
    return result.si_status


async def read_line(child: Child) -> bytes:
    """The first line of its output: the sign that it is ready."""
    assert child.stdout is not None
    await anyio.wait_readable(child.stdout)
    return os.read(child.stdout, 1000)


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 1", 1), ("exit 255", 255), ("kill -9 $$", 137), ("kill -15 $$", 143), ("kill -11 $$", 139)],
)
async def test_exit_codes(children: Children, script: str, code: int) -> None:
    """An exit code is the program's own; a signal n becomes 128 + n."""
    child = spawn(children, "sh", "-c", script)
    await child.wait_exited()
    assert await finish(child) == code
    close(child)


async def test_own_session_and_group(children: Children) -> None:
    """The child leads a session and a group of its own, and has nothing on its stdin."""
    child = spawn(children, "sh", "-c", "cat; read line; echo $?; exec sleep 60")
    assert os.getsid(child.pid) == os.getpgid(child.pid) == child.pid
    assert await read_line(child) == b"1\n"
    await finish(child)
    close(child)


async def test_inherits_no_descriptor(children: Children) -> None:
    """Not even a descriptor that is inheritable reaches the child."""
    leaked = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    script = "import os; print([fd for fd in range(3, 200) if os.path.exists(f'/proc/self/fd/{fd}')])"
    child = spawn(children, *PYTHON, script)
    assert await read_line(child) == b"[]\n"
    await finish(child)
    os.close(leaked)
    close(child)


async def test_leader_stays_until_the_group_was_killed(children: Children) -> None:
    """The ended leader is a zombie until `finish`, so its group's number cannot go to anybody else."""
    child = spawn(children, "sh", "-c", "sleep 60 & echo $!; exit 3")
    member = int(await read_line(child))
    await child.wait_exited()
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
    assert os.getpgid(member) == child.pid
    assert await finish(child) == 3
    assert not psutil.pid_exists(child.pid)
    assert wait_for(member, os.WEXITED) == signal.SIGKILL
    close(child)


async def test_no_signal_after_the_reap(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the leader is reaped, no signal is sent to a group that has its number."""
    child = spawn(children, "true")
    await finish(child)
    sent: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _sig: sent.append(group))
    child.signal_group(signal.SIGKILL)
    await stop(child, 0)
    assert sent == []
    close(child)


async def test_grace_is_used(children: Children) -> None:
    """SIGTERM comes first, and a program that handles it keeps its exit code."""
    child = spawn(children, "sh", "-c", "trap 'exit 5' TERM; echo ready; while :; do :; done")
    await read_line(child)
    assert await stop(child, 5) == 5
    close(child)


async def test_grace_ends(children: Children) -> None:
    """A program that ignores SIGTERM is killed when the grace is over."""
    child = spawn(children, "sh", "-c", "trap '' TERM; echo ready; while :; do :; done")
    await read_line(child)
    start = time.monotonic()
    assert await stop(child, 0.2) == 137
    assert 0.2 <= time.monotonic() - start < 1.2
    close(child)


async def test_a_stopped_program_is_woken(children: Children) -> None:
    """A program that is stopped by SIGSTOP can use its grace."""
    child = spawn(children, "sh", "-c", "trap 'exit 6' TERM; echo ready; kill -STOP $$; sleep 60")
    await read_line(child)
    wait_for(child.pid, os.WSTOPPED | os.WNOWAIT)
    assert await stop(child, 5) == 6
    close(child)


async def test_the_grace_is_the_groups(children: Children, tmp_path: Path) -> None:
    """Where a shell dies of the SIGTERM at once, what it started still has the grace."""
    program = "trap 'sleep 0.2; echo done > saved; exit' TERM; echo ready; while :; do sleep 0.01; done"
    child = spawn(children, "sh", "-c", 'sh -c "$0"; exit 1', program, cwd=tmp_path)
    await read_line(child)
    start = time.monotonic()
    assert await stop(child, 10) == 143
    assert time.monotonic() - start < 5
    assert (tmp_path / "saved").read_text() == "done\n"
    await sweep(children)
    close(child)


async def test_stop_cannot_be_cancelled(children: Children) -> None:
    """A cancel during the grace does not keep the program from being reaped."""
    child = spawn(children, "sh", "-c", "trap '' TERM; echo ready; while :; do :; done")
    await read_line(child)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await stop(child, 0.1)
    assert not psutil.pid_exists(child.pid)
    close(child)


async def test_a_stolen_status_is_no_success(children: Children) -> None:
    """If somebody else reaps the child, that is said; it never reads as exit 0."""
    child = spawn(children, "false")
    assert wait_for(child.pid, os.WEXITED) == 1
    with pytest.raises(ProgramError, match="taken by somebody else"):
        await finish(child)
    close(child)


async def test_cannot_be_started(children: Children, tmp_path: Path) -> None:
    """Each way of not starting is one clear sentence, and leaves no descriptor and no pid behind."""
    plain, script, text = tmp_path / "plain", tmp_path / "script", tmp_path / "text"
    plain.write_text("x")
    script.write_text("#!/no/such/interpreter\n")
    text.write_text("\x00\x01")
    script.chmod(stat.S_IRWXU)
    text.chmod(stat.S_IRWXU)
    before = os.listdir("/proc/self/fd")
    for argv, cwd, words in [
        ((), "/", "its command is empty"),
        (("no-such-program",), "/", "'no-such-program' .* was not found"),
        ((str(script),), "/", "the interpreter that it names, was not found"),
        ((str(plain),), "/", "not executable"),
        ((str(text),), "/", "neither a binary for this machine nor a script"),
        (("true", "x" * 3_000_000), "/", "longer than execve"),
        (("true", "a\0b"), "/", "embedded null byte"),
        (("true",), str(tmp_path / "gone"), "its directory .*gone cannot be entered"),
    ]:
        with pytest.raises(ProgramError, match=words):
            spawn(children, *argv, cwd=Path(cwd))
    assert os.listdir("/proc/self/fd") == before
    assert children.waited() == children.spared()


async def test_path_of_the_program(children: Children, tmp_path: Path) -> None:
    """A program is looked up in its own PATH, not the driver's."""
    with pytest.raises(ProgramError, match="not found"):
        spawn(children, "true", path=str(tmp_path))


async def test_leaves_no_descriptor(children: Children) -> None:
    """A hundred children leave as many descriptors as there were before."""
    before = os.listdir("/proc/self/fd")
    for _ in range(100):
        child = spawn(children, "true")
        await child.wait_exited()
        await finish(child)
        close(child)
    assert os.listdir("/proc/self/fd") == before
