"""What the kernel and the container do for the driver: protection of the token, of other files, and of memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from driver import settings
from driver.check.finding import Finding, failure, warning
from driver.check.reading import Reading
from driver.errors import HardeningFailed, ProgramError
from driver.exits import CheckExit
from driver.hardening import exposed_to, make_undumpable
from driver.process.landlock import version
from driver.process.orphans import become_subreaper
from driver.values import MIB

_PIDS: Final = Path("/sys/fs/cgroup/pids.max")
_PTRACE_SCOPE: Final = Path("/proc/sys/kernel/yama/ptrace_scope")
_STATUS: Final = Path("/proc/self/status")
# Signals and abstract sockets are kept inside from this version on.
_SCOPED_LANDLOCK: Final = 6
# The driver's threads and short helpers, beside the programs.
_DRIVER_PROCESSES: Final = 64


def protect() -> Iterator[Finding]:
    """Take the driver's own steps in this process. In the main thread, before anything that may hang."""
    try:
        make_undumpable()
        yield Finding("kernel", "not dumpable", "programs of the same user cannot read the driver's memory")
    except HardeningFailed as error:
        advice = "use a kernel or a sandboxed kernel that has PR_SET_DUMPABLE: the driver does not start without"
        yield failure("kernel", "not dumpable", str(error), advice, CheckExit.MACHINE)
    try:
        become_subreaper()
        yield Finding("kernel", "orphans", "come back to the driver, however they left")
    except ProgramError as error:
        advice = "use a kernel that has PR_SET_CHILD_SUBREAPER: the driver does not start without"
        yield failure("kernel", "orphans", str(error), advice, CheckExit.MACHINE)


def look(reading: Reading) -> Iterator[Finding]:
    """What holds programs, and who can read the token in spite of all."""
    if reason := exposed_to(None if version() else reading.token_file, reading.gateway_url or ""):
        found, _, advice = reason.partition(": ")
        yield warning("kernel", "token", found, advice)
    else:
        yield Finding("kernel", "token", "no capability, file or module leads programs to it")
    yield _landlock(version())
    yield from _ptrace_scope()
    if "Seccomp:\t0" in _STATUS.read_text("ascii", "replace"):
        advice = "set seccompProfile RuntimeDefault: it takes calls away that programs have no use for"
        yield warning("kernel", "seccomp", "no filter is in force", advice)


def _landlock(known: int) -> Finding:
    if not known:
        found = "none: nothing but permissions keeps programs from writing outside work/, out/ and .sessions/"
        advice = "use a kernel with Landlock (5.13 or newer, named in its lsm= list), or a read-only root file system"
        return warning("kernel", "Landlock", found, advice)
    scoped = "and signals stay inside" if known >= _SCOPED_LANDLOCK else "but signals to other processes do not"
    return Finding("kernel", "Landlock", f"version {known}: programs write only where they may, {scoped}")


def _ptrace_scope() -> Iterator[Finding]:
    try:
        scope = _PTRACE_SCOPE.read_text("ascii").strip()
    except OSError:
        return  # a kernel without Yama; it adds to what protects the driver, and is not needed
    what = "any process of the same user that is dumpable" if scope == "0" else "descendants at most"
    yield Finding("kernel", "ptrace_scope", f"{scope}: programs may trace {what}; never the driver")


def limits(reading: Reading) -> Iterator[Finding]:
    """The container's limits against the programs' own."""
    program = reading.settings.program
    container = settings.container_memory()
    share = settings.DRIVER_SHARE
    if container is None and program.memory is not None:
        found = f"the container has no limit, programs may have {program.memory // MIB:,} MiB"
        yield Finding("limits", "memory", found)
    elif container is None:
        advice = "set a memory limit on the container: programs have one only with it, or by DRIVER_PROGRAM_MEMORY"
        yield warning("limits", "memory", "the container has no limit", advice)
    elif program.memory is not None and container < program.memory + share:
        found = f"the container has {container // MIB:,} MiB, programs may have {program.memory // MIB:,} MiB"
        advice = f"leave {share // MIB} MiB for the driver: over its limit a container is killed whole"
        yield warning("limits", "memory", found, advice)
    else:
        found = f"{container // MIB:,} MiB, of which programs may have {(program.memory or 0) // MIB:,} MiB"
        yield Finding("limits", "memory", found)
    yield _processes(program.processes)


def _processes(wanted: int) -> Finding:
    try:
        text = _PIDS.read_text("ascii").strip()
    except OSError:
        text = "max"
    if not text.isdigit():
        return Finding(
            "limits", "processes", f"the container has no limit that shows here; programs may have {wanted:,}"
        )
    if int(text) < wanted + _DRIVER_PROCESSES:
        advice = f"allow {wanted + _DRIVER_PROCESSES:,} in the container, or lower DRIVER_PROGRAM_PROCESSES"
        found = f"the container may have {text}, programs {wanted:,} of them"
        return warning("limits", "processes", found, advice)
    return Finding("limits", "processes", f"{text}, of which programs may have {wanted:,}")
