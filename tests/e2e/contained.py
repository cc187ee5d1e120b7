"""A container for tests, made of namespaces: the driver is PID 1 there, and nothing but /workspace and /tmp is written.

What a container runtime does for a Pod with `readOnlyRootFilesystem`, a user without an entry in passwd, all
capabilities dropped, and nothing in the environment but what was asked for. The network stays this machine's, so
that the stub is reached on loopback.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio.lowlevel
import pytest

ROOT = Path(__file__).parents[2]
ENTRYPOINT = str(ROOT / "entrypoint.sh")

# What the image's entrypoint is: stops are blocked before the shell starts.
HELD = ("env", "--block-signal=TERM", "--block-signal=INT", ENTRYPOINT)

_UNSHARE = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc")
_DEVICES = ("null", "zero", "urandom")


def needs_root() -> None:
    """Skip, with a word, where no container can be made: in a chroot, for one, no mount namespace of one's own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None:
        pytest.skip("a container of namespaces needs root, unshare and setpriv")
    if subprocess.run([*_UNSHARE, "true"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("a container of namespaces cannot be made here")


def contained(directory: Path, *, uid: int, gid: int, command: Sequence[str] = (ENTRYPOINT,)) -> list[str]:
    """The command that runs `command` as PID 1 of a container, as this user, with no capability.

    `directory` is empty, and becomes the container's root in its own mount namespace. The process that is
    started is `unshare`; its one child is PID 1, and it ends with that one's code.
    """
    root = shlex.quote(str(directory))
    user = ["--reuid", str(uid), "--regid", str(gid), "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    user += ["--pdeathsig", "KILL"]  # a change of user undoes --kill-child (prctl(2))
    lines = [
        "set -e",
        f"mount -t tmpfs -o mode=0755 none {root}",
        f"cd {root}",
        "mkdir -p proc dev tmp workspace",
        # First, for this project may itself lie below one of them.
        "mount -t tmpfs -o mode=1777 none tmp",
        f"mount -t tmpfs -o mode=0770,uid={uid},gid={gid} none workspace",
        *(_bind(path) for path in _inputs()),
        *(f"touch dev/{name}; mount --bind /dev/{name} dev/{name}" for name in _DEVICES),
        "ln -s /proc/self/fd dev/fd",
        "mount -t proc -o nosuid,nodev,noexec none proc",
        f"mount -o remount,ro {root}",
        shlex.join(["exec", "chroot", str(directory), "setpriv", *user, *command]),
    ]
    return [*_UNSHARE, "sh", "-c", "\n".join(lines)]


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings as a container has them: no HOME, and the workspace where the image has it."""
    return {**settings, "DRIVER_WORKSPACE": "/workspace"}


def pid_1(unshare: int) -> int:
    """The container's PID 1, as this side numbers it."""
    return int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text())


def members(namespace: str) -> list[str]:
    """The processes in a PID namespace."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "ns/pid") == namespace:
                found.append(entry.name)
        except OSError:
            continue
    return found


async def can_take_a_stop(pid: int) -> None:
    """Return when SIGTERM is caught or blocked: the kernel drops what PID 1 does neither with.

    That is so for about a millisecond, until `env` has blocked the signal. Without it there would be a second moment
    like this, while the shell hands over.
    """
    bit = 1 << (signal.SIGTERM - 1)
    while True:
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        if (int(status["SigCgt"], 16) | int(status["SigBlk"], 16)) & bit:
            return
        await anyio.lowlevel.checkpoint()


def _inputs() -> list[Path]:
    """What is mounted read-only: the system, the interpreter and its libraries, this project."""
    inside = [Path(name) for name in _SYSTEM if Path(name).exists()]
    own = {Path(sys.base_prefix), Path(sys.prefix), ROOT}
    return inside + [path for path in sorted(own) if not any(path.is_relative_to(other) for other in inside)]


def _bind(path: Path) -> str:
    below = shlex.quote(str(path).lstrip("/"))
    if path.is_symlink():
        return f"ln -s {shlex.quote(os.readlink(path))} {below}"
    return f"mkdir -p {below}; mount --bind -o ro {shlex.quote(str(path))} {below}"
