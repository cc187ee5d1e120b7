"""Containers of the image by runc, the runtime of most clusters, as a Pod of deploy/ has them.

PID 1 of a PID namespace of its own, a read-only root, no capability, no way to get one, the seccomp profile that
comes with Debian's container tools, and cgroups with the limits. The network stays this machine's, so that the stub
is reached on loopback.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.image.building import Image

MIB: Final = 1 << 20
ANYBODY: Final = (1000730000, 0)
"""A user as a cluster gives one to each namespace: in no passwd, in the group 0."""

PIDS: Final = 640
"""What docs/deploy.md asks of the kubelet."""

_PROFILE: Final = Path("/usr/share/containers/seccomp.json")
_NOT_OURS: Final = {"PATH", "DRIVER_PYTHON", "HOME", "DRIVER_WORKSPACE"}
_MASKED: Final = ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/sys/firmware"]
_READ_ONLY: Final = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
_CAPABILITIES: Final = ("bounding", "effective", "inheritable", "permitted", "ambient")


@dataclass(frozen=True)
class Container:
    """How the image is run. `user` has an id, a group, and perhaps the group of its volumes."""

    image: Image
    root: Path
    place: Path
    user: tuple[int, ...]
    memory: int = 1024 * MIB
    read_only: bool = True
    command: tuple[str, ...] = ()

    def running(self, *command: str) -> "Container":
        """The same with this command in place of the entrypoint."""
        return replace(self, command=command)

    def command_line(self, settings: Mapping[str, str]) -> list[str]:
        """What starts it with these settings; the process is runc, which ends with the exit code of PID 1."""
        name = f"driver-{secrets.token_hex(4)}"
        bundle = self.place / name
        bundle.mkdir(parents=True)
        (bundle / "config.json").write_text(json.dumps(self._config(name, settings)))
        return ["runc", "--root", str(self.place / "state"), "run", "--bundle", str(bundle), name]

    def _config(self, name: str, settings: Mapping[str, str]) -> dict[str, Any]:
        uid, gid, *groups = self.user
        given = {key: value for key, value in settings.items() if key not in _NOT_OURS}
        return {
            "ociVersion": "1.0.2",
            "hostname": "sandbox",
            "root": {"path": str(self.root), "readonly": self.read_only},
            "process": {
                "args": list(self.command or self.image.config["Entrypoint"]),
                "cwd": self.image.config["WorkingDir"],
                "env": [f"{key}={value}" for key, value in {**self.image.environment, **given}.items()],
                "user": {"uid": uid, "gid": gid, "additionalGids": groups},
                "capabilities": {kind: [] for kind in _CAPABILITIES},
                "noNewPrivileges": True,
            },
            "mounts": _mounts((groups or [gid])[0]),
            "linux": {
                "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")],
                "cgroupsPath": f"/{name}",
                "resources": {
                    "devices": [{"allow": False, "access": "rwm"}],
                    "memory": {"limit": self.memory},
                    "pids": {"limit": PIDS},
                },
                "seccomp": _seccomp(),
                "maskedPaths": _MASKED,
                "readonlyPaths": _READ_ONLY,
            },
        }


def _mounts(group: int) -> list[dict[str, Any]]:
    """The file systems of a Pod; its volumes belong to root and to the group, as the kubelet leaves them."""
    volume = ["nosuid", "nodev", "mode=2770", f"gid={group}"]
    tables = [
        ("/proc", "proc", ["nosuid", "nodev", "noexec"]),
        ("/dev", "tmpfs", ["nosuid", "mode=755", "size=64k"]),
        ("/dev/shm", "tmpfs", ["nosuid", "nodev", "noexec", "mode=1777", "size=64m"]),
        ("/sys", "sysfs", ["nosuid", "nodev", "noexec", "ro"]),
        ("/sys/fs/cgroup", "cgroup", ["nosuid", "nodev", "noexec", "relatime", "ro"]),
        ("/workspace", "tmpfs", volume),
        ("/home/driver", "tmpfs", volume),
        ("/tmp", "tmpfs", ["nosuid", "nodev", "mode=1777"]),
    ]
    return [{"destination": path, "type": kind, "source": kind, "options": options} for path, kind, options in tables]


def _seccomp() -> dict[str, Any]:
    """The profile as it is for somebody without capabilities: what it makes depend on one is left out."""
    profile = json.loads(_PROFILE.read_bytes())
    kept = [
        {"names": rule["names"], "action": rule["action"], "args": rule["args"] or [], "errnoRet": rule.get("errnoRet")}
        for rule in profile["syscalls"]
        if not rule["includes"].get("caps") and "amd64" in rule["includes"].get("arches", ["amd64"])
    ]
    for rule in kept:
        if rule["errnoRet"] is None:
            del rule["errnoRet"]
    architecture = profile["archMap"][0]
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": [architecture["architecture"], *architecture["subArchitectures"]],
        "syscalls": kept,
    }
