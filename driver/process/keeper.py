"""Stands between a driver that is not PID 1 and a program, and ends what is below it once the driver is gone.

usage: python -I -S keeper.py LIFE TOLD PROGRAM [ARGUMENT ...]

As PID 1 the driver takes everything with it, whatever ends it. Elsewhere nobody would look after the processes of a
driver that was killed. So this process starts the program, is the nearest subreaper of whatever that starts (prctl(2)
PR_SET_CHILD_SUBREAPER), and ends as the program ends. LIFE is the reading end of a pipe that only the driver can
write to: when it is closed, everything below is killed. TOLD is a pipe for the errno of a program that cannot be
started.

It runs in the program's session with the program's rights, and imports nothing of the driver.
"""

import ctypes
import os
import select
import signal
import sys
import time

SUBREAPER = 36
PAUSE_SECONDS = 0.01
REAP_MILLISECONDS = 1000
# What Python ignores, and what the driver sends to the whole group for the program to act on.
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    life, told, *argv = sys.argv[1:]
    keep(int(life), int(told), argv)


def keep(life: int, told: int, argv: list[str]) -> None:
    """Run the program to its end, or to the driver's; does not return."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    for pipe in (life, told):
        os.set_inheritable(pipe, False)
    try:
        program = os.posix_spawnp(argv[0], argv, environment(), setsigdef=IGNORED)
    except OSError as error:
        os.write(told, str(error.errno).encode())
        os._exit(127)
    os.close(told)
    end_like(wait(program, life))


def environment() -> dict[bytes, bytes]:
    """What this process was started with; Python adds to its own what its locale needs."""
    with open("/proc/self/environ", "rb") as file:
        pairs = (entry.partition(b"=") for entry in file.read().split(b"\0") if entry)
        return {name: value for name, _, value in pairs}


def wait(program: int, life: int) -> int:
    """The program's wait status (waitpid(2)). Orphans that end meanwhile are reaped within a second."""
    poll = select.poll()
    poll.register(os.pidfd_open(program), select.POLLIN)
    poll.register(life, select.POLLIN)
    while True:
        ready = poll.poll(REAP_MILLISECONDS)
        status = reap(program)
        if status is not None:
            return status
        if any(fd == life for fd, _ in ready):
            end_all()
            os._exit(128 + signal.SIGKILL)


def reap(program: int = 0) -> int | None:
    """Take the status of each child that has ended; the program's, if it is among them."""
    found = None
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == program:
                found = ended[1]
    except ChildProcessError:
        pass
    return found


def end_all() -> None:
    """Kill and reap all that is below this process, until there is nothing; nobody else would."""
    while below := descendants():
        for pid, started in below:
            kill(pid, started)
        reap()
        time.sleep(PAUSE_SECONDS)


def descendants() -> list[tuple[int, int]]:
    """The pid and start time of each process below this one."""
    children: dict[int, list[tuple[int, int]]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        if (found := stat(int(name))) is not None:
            parent, started = found
            children.setdefault(parent, []).append((int(name), started))
    found_below: list[tuple[int, int]] = []
    parents = [os.getpid()]
    while parents:
        below = children.get(parents.pop(), [])
        found_below += below
        parents += [pid for pid, _ in below]
    return found_below


def stat(pid: int) -> tuple[int, int] | None:
    """The parent and the start time of a process (proc_pid_stat(5)), or None where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]), int(fields[19])


def kill(pid: int, started: int) -> None:
    """Kill a process that was listed, and not the next owner of its pid."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        found = stat(pid)
        if found is not None and found[1] == started:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        pass  # it has ended meanwhile, or is another user's
    finally:
        os.close(pidfd)


def end_like(status: int) -> None:
    """End with the same code, or by the same signal."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
