"""Keeps other processes of the same user out of this one's memory, environment and descriptors.

A process that is not dumpable cannot be traced, and its /proc/PID/environ, mem, maps and fd cannot be read,
by a process without CAP_SYS_PTRACE (prctl(2) PR_SET_DUMPABLE, ptrace(2) "Ptrace access mode checking",
proc(5)). An exec makes a child dumpable again, so programs and what the driver reads of them in /proc are
as usual, but for the moment between a spawn's return and the end of the exec: a permission error that passes.
The driver's own /proc/self files belong to root then: as another user it can still read those that all may
read (status, stat, statm) and its own fd, but it cannot write any (oom_score_adj, for one).
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from driver.errors import HardeningFailed

# <linux/prctl.h>
_PR_GET_DUMPABLE: Final = 3
_PR_SET_DUMPABLE: Final = 4

# capabilities(7), <linux/capability.h>: each of them leads past the dumpable attribute.
_TO_MEMORY: Final = {
    "CAP_SYS_MODULE": 16,
    "CAP_SYS_RAWIO": 17,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_PERFMON": 38,
}
# Each of them leads to what other processes send and receive (packet(7), and a packet filter that redirects).
_TO_THE_WIRE: Final = {
    "CAP_NET_ADMIN": 12,
    "CAP_NET_RAW": 13,
}

_STATUS: Final = Path("/proc/self/status")


def make_undumpable() -> None:
    """Make this process not dumpable, and forbid core files to it and its children.

    Raises HardeningFailed. A change of user or an exec would undo it.
    """
    # Imported here, as only this call needs them and ctypes is slow to import.
    import ctypes
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise HardeningFailed(f"prctl(PR_SET_DUMPABLE): {os.strerror(ctypes.get_errno())}")
    if libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise HardeningFailed("prctl(PR_SET_DUMPABLE) had no effect")


def exposed_to(
    token_file: Path | None = None,
    gateway_url: str = "",
    *,
    status: str | None = None,
    code: Sequence[str] | None = None,
) -> str | None:
    """Who can read the token in spite of all, in one sentence for a warning, or None.

    `token_file` is a file with the token that programs can read, `gateway_url` the setting as it was given. `status` is
    the text of /proc/self/status and `code` names the directories that modules are imported from; both are looked up
    when left out.
    """
    status = _STATUS.read_text("ascii", "replace") if status is None else status
    if capabilities := _reach_of_programs(status, _TO_MEMORY):
        return (
            f"programs can have {', '.join(capabilities)} and so read the token in this process's memory: "
            "run the sandbox as a user other than root, with all capabilities dropped"
        )
    if gateway_url.lower().startswith("http:") and (capabilities := _reach_of_programs(status, _TO_THE_WIRE)):
        return (
            f"programs can have {', '.join(capabilities)} and so read the token on its way to the gateway: "
            "use https, or run the sandbox as a user other than root, with all capabilities dropped"
        )
    if writable := [path for path in (_own_code() if code is None else code) if os.access(path, os.W_OK)]:
        return (
            f"programs can write to {writable[0]}, where this process imports its code from: "
            "make the root file system read-only, or run the sandbox as a user who may not write there"
        )
    if token_file is not None:
        return (
            "HEPHAESTUS_SANDBOX_TOKEN_FILE names a file that stays, and without Landlock programs can read it: "
            "set HEPHAESTUS_SANDBOX_TOKEN and start by entrypoint.sh, which hands it over on a descriptor"
        )
    return None


def _own_code() -> list[str]:
    return [os.path.dirname(__file__), *sys.path]


def _reach_of_programs(status: str, capabilities: Mapping[str, int]) -> list[str]:
    """Those of the capabilities that this process has, or that a child gets by an exec as root."""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    sets = ["CapEff", "CapPrm"]
    if "0" in fields.get("Uid", "").split():
        # An exec as root gives back the whole bounding set (capabilities(7), "Capabilities and execution").
        sets.append("CapBnd")
    held = 0
    for name in sets:
        held |= int(fields.get(name, "0"), 16)  # a sandboxed kernel may leave them out
    return [name for name, bit in capabilities.items() if held >> bit & 1]
