"""Whatever leaves a program's tree is found, killed and reaped; what somebody waits for is never touched."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import anyio
import psutil
import pytest
from anyio.to_thread import run_sync

from driver.errors import ProgramError
from driver.process import orphans
from driver.process.child import Child
from driver.process.children import Children
from driver.process.tree import process, strays
from tests.driver.process.conftest import ANYWHERE, PYTHON

pytestmark = pytest.mark.anyio


def orphan(script: str = "sleep 60") -> int:
    """An orphan of this process, in a session of its own; its pid."""
    made = subprocess.run(
        ["sh", "-c", f'setsid sh -c "{script}" >/dev/null 2>&1 & echo $!'], stdout=subprocess.PIPE, check=True
    )
    return int(made.stdout)


def zombie() -> int:
    """An orphan that has ended, and that nobody has reaped; its pid."""
    script = (
        "import os\nmother, pid = os.getpid(), os.fork()\nif pid: print(pid, flush=True); os._exit(0)\n"
        "while os.getppid() == mother: pass\nos._exit(0)"
    )
    pid = int(subprocess.run([*PYTHON, script], stdout=subprocess.PIPE, check=True).stdout)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


def spawn(children: Children, script: str, *more: str) -> Child:
    return Child.spawn(
        ["sh", "-c", script, *more],
        cwd=Path("/"),
        environment={"PATH": "/usr/bin:/bin"},
        children=children,
        confinement=ANYWHERE,
    )


async def end(child: Child) -> int:
    await child.wait_exited()
    child.kill()
    code = await child.reap()
    assert child.stdout is not None
    os.close(child.stdout)
    os.close(child.stderr)
    return code


class TickClock:
    """A clock whose sleeps end when the test says so."""

    def __init__(self) -> None:
        self.slept = anyio.Event()
        self._ticks, self._taken = anyio.create_memory_object_stream[None](100)

    def tick(self) -> None:
        self._ticks.send_nowait(None)

    def now(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0

    async def sleep(self, _seconds: float) -> None:
        self.slept.set()
        await self._taken.receive()

    async def sleep_until(self, moment: float) -> None:
        await self.sleep(moment)

    def close(self) -> None:
        self._ticks.close()
        self._taken.close()


async def test_sweep_kills_and_reaps(children: Children) -> None:
    """Living orphans and what is below them are gone after a sweep, and no zombie is left."""
    pids = [orphan(), orphan("sleep 60 & sleep 60 & wait"), orphan("trap '' TERM HUP INT; sleep 60; sleep 60")]
    assert await orphans.sweep(children) >= 3
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_sweep_of_nothing(children: Children) -> None:
    """With nothing to find a sweep finds nothing."""
    assert await orphans.sweep(children) == 0


async def test_waited_children_are_spared(children: Children) -> None:
    """A child that is waited for, what is below it, and what it left in its session live on."""
    child = spawn(children, "sleep 60 & sh -c 'sleep 60 & echo $!'; wait")
    assert child.stdout is not None
    await anyio.wait_readable(child.stdout)
    in_session = int(os.read(child.stdout, 100))
    lost = orphan()
    assert await orphans.sweep(children) >= 1
    assert not psutil.pid_exists(lost)
    assert psutil.Process(in_session).ppid() == os.getpid()
    assert len(psutil.Process(child.pid).children()) == 1
    child.signal_group(signal.SIGKILL)
    assert await end(child) == 137
    await orphans.sweep(children)
    assert not psutil.pid_exists(in_session)


async def test_spared_children(children: Children) -> None:
    """A child of the driver that is no program is spared, with all that is below it."""
    own = subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True)
    registry = Children(spared=[*children.spared(), own.pid])
    assert await orphans.sweep(registry) == 0
    assert own.poll() is None
    os.killpg(own.pid, signal.SIGKILL)
    own.wait()
    await orphans.sweep(children)


async def test_running_away(children: Children) -> None:
    """A chain of processes that fork, change session and exit, faster than it can be watched, is ended."""
    script = "import os\nwhile True:\n  if os.fork(): os._exit(0)\n  os.setsid()"
    subprocess.run([*PYTHON, script], check=True)
    assert await orphans.sweep(children, within=20) > 0


async def test_others_may_go_on(children: Children) -> None:
    """While another program makes orphans on and on, a sweep ends all the same, and that program lives."""
    busy = spawn(children, "while :; do (setsid sleep 60 >/dev/null 2>&1 &); done")
    with anyio.fail_after(10):
        while not strays(children.kept):  # noqa: ASYNC110 # the kernel tells nobody
            await anyio.sleep(0.01)
    with anyio.fail_after(4):
        assert await orphans.sweep(children) > 0
    assert not busy.exited()
    busy.signal_group(signal.SIGKILL)
    assert await end(busy) == 137
    await orphans.sweep(children)


async def test_below_a_killed_leader(children: Children) -> None:
    """Once a leader is killed all below it goes, before it is reaped; its own status stays for who waits."""
    child = spawn(children, "setsid sleep 60 & echo $!; sleep 60 & wait")
    assert child.stdout is not None
    await anyio.wait_readable(child.stdout)
    below = int(os.read(child.stdout, 100))
    child.kill()
    await orphans.sweep(children)
    assert not psutil.pid_exists(below)
    assert psutil.pid_exists(child.pid)
    assert await end(child) == 137


async def test_a_leader_that_hangs(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that does not end is an error, and an orphan from then on: a later sweep ends and reaps it."""
    child = spawn(children, "exec sleep 60")
    monkeypatch.setattr("driver.process.child.KILL_SECONDS", 0.05)
    monkeypatch.setattr(os, "killpg", lambda _group, _sig: None)
    child.kill()
    with pytest.raises(ProgramError, match=f"process {child.pid} is still there"):
        await child.reap()
    assert children.waited() == children.spared()
    assert await orphans.sweep(children) == 1
    assert not psutil.pid_exists(child.pid)
    assert child.stdout is not None
    os.close(child.stdout)
    os.close(child.stderr)


def test_statuses_are_kept(children: Children) -> None:
    """A driver that was started with SIGCHLD ignored would never see an exit code; it undoes that."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    orphans.become_subreaper()
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL


async def test_a_look_without_a_thread(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started, since a program used up all processes, orphans are swept all the same."""

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pid = orphan()
    monkeypatch.setattr(threading.Thread, "start", fail)
    assert await orphans.sweep(children) >= 1
    assert not psutil.pid_exists(pid)


async def test_survivors_are_an_error(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that SIGKILL does not end is named when the time is over."""
    pid = orphan("exec sleep 60")
    send = signal.pidfd_send_signal
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda _fd, _sig: None)
    with pytest.raises(ProgramError, match=rf"1 processes .* left 0.05 s after SIGKILL: {pid} \("):
        await orphans.sweep(children, within=0.05)
    monkeypatch.setattr(signal, "pidfd_send_signal", send)
    await orphans.sweep(children)


async def test_a_child_being_started_is_spared(children: Children) -> None:
    """A look that sees a child before its start has returned waits, and then knows it."""
    forked, go_on = threading.Event(), threading.Event()
    made: list[subprocess.Popen[bytes]] = []

    def slow_start() -> int:
        made.append(subprocess.Popen(["sleep", "60"]))
        forked.set()
        assert go_on.wait(10)
        return made[0].pid

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_sync, children.started, slow_start)
        await run_sync(forked.wait, 10)
        tasks.start_soon(orphans.sweep, children)
        # The sweep has its list of processes and waits for the registry now, or will; both are right.
        await run_sync(go_on.wait, 0.1)
        go_on.set()
    assert made[0].poll() is None
    made[0].kill()
    children.reaped(made[0].pid, made[0].wait)


async def test_true_codes_while_orphans_are_reaped(children: Children) -> None:
    """A hundred short children keep their exit codes while orphans are swept and reaped beside them."""
    codes: dict[int, int] = {}

    async def one(number: int) -> None:
        async with at_once:
            child = spawn(children, f"setsid sleep 60 >/dev/null 2>&1 & setsid true & exit {number}")
            codes[number] = await end(child)

    async def sweep_on() -> None:
        while True:
            await orphans.sweep(children)
            orphans._reap_zombies(children)

    at_once = anyio.Semaphore(8)
    async with anyio.create_task_group() as sweeping:
        sweeping.start_soon(sweep_on)
        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(one, number)
        sweeping.cancel_scope.cancel()
    assert codes == {number: number for number in range(100)}
    await orphans.sweep(children)


async def test_zombies_are_reaped_while_a_program_runs(children: Children) -> None:
    """Orphans that ended are reaped every second; one that lives is left alone."""
    clock = TickClock()
    living = orphan()
    dead = zombie()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(orphans.reap_forever, children, clock)
        await clock.slept.wait()
        clock.slept = anyio.Event()
        clock.tick()
        await clock.slept.wait()
        tasks.cancel_scope.cancel()
    clock.close()
    assert not psutil.pid_exists(dead)
    assert psutil.pid_exists(living)
    await orphans.sweep(children)


async def test_a_recycled_pid_is_not_hit(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the pid has got a new owner since it was listed, nothing is sent."""
    listed = process(orphan("exec sleep 60"))
    assert listed is not None
    sent: list[int] = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda _fd, number: sent.append(number))
    orphans._kill(replace(listed, started=listed.started - 1))
    assert sent == []
    orphans._kill(listed)
    assert sent == [signal.SIGKILL]
    monkeypatch.undo()
    await orphans.sweep(children)


def test_imports_stay_light() -> None:
    """Importing the runner imports neither psutil nor ctypes."""
    script = "import sys, driver.process.programs as _; print({'psutil', 'ctypes'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"set()\n"
