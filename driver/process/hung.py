"""What a program that does not end is doing, in words for the log."""

from typing import Final

from driver.process.tree import Process, process, processes

# proc_pid_stat(5), "state".
_STATES: Final = {
    "R": "running",
    "S": "sleeping",
    "D": "in uninterruptible sleep",
    "T": "stopped",
    "t": "held by a tracer",
    "Z": "ended",
}
_NAMED: Final = 5


def doing(pid: int) -> str | None:
    """What the process is doing, and in which function of the kernel where it tells; None where there is none."""
    one = process(pid)
    return None if one is None else _told(one)


def living(group: int) -> str:
    """The processes of a group that have not ended, five at most, and what each is doing."""
    found = [one for one in processes().values() if one.group == group and not one.ended]
    named = [f"{one.pid} ({one.name}) {_told(one)}" for one in found[:_NAMED]]
    return ", ".join([*named, *(["..."] if len(found) > _NAMED else [])])


def _told(one: Process) -> str:
    state = _STATES.get(one.state, one.state)
    function = _kernel_function(one.pid)
    return f"{state} in {function}" if function else state


def _kernel_function(pid: int) -> str:
    """Where it waits (proc_pid_wchan(5)); empty where the kernel does not tell."""
    try:
        with open(f"/proc/{pid}/wchan", encoding="ascii", errors="replace") as file:
            function = file.read(100)
    except OSError:
        return ""
    return "" if function == "0" else function
