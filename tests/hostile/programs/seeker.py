"""The token is nowhere: looks for a text wherever a process can look, and leaves in out/result.json where it found it.

usage: seeker.py SHIFTED...

It is given the parts of the text with each byte one higher, and shifts what it searches, so that it does not hold
"""

import base64
import ctypes
import gzip
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

CHUNK = 1 << 20
LONGEST_FILE = 64 << 20
PTRACE_ATTACH, PTRACE_DETACH, PTRACE_SEIZE = 16, 17, 0x4206
PROCESS_VM_READV, PIDFD_GETFD = 310, 438  # x86_64 and the generic table (asm/unistd.h)
UNTOLD = ("mem", "pagemap", "clear_refs")  # looked at by regions, of no use, write only
KERNEL = ("proc", "sysfs", "devtmpfs", "cgroup2")

SHIFT = bytes([*range(1, 256), 0])

looked: Counter[str] = Counter()
found: list[str] = []


class Needles:
    """What is looked for, shifted."""

    def __init__(self, shifted: Sequence[bytes]) -> None:
        self.all = shifted

    def in_(self, data: bytes) -> bool:
        searched = data.translate(SHIFT)
        return any(needle in searched for needle in self.all)


def look(kind: str, where: str, data: bytes, needles: Needles) -> None:
    looked[kind] += 1
    if needles.in_(data):
        found.append(f"{kind}: {where}")


def read(path: str, most: int = LONGEST_FILE) -> bytes | None:
    """What a file holds, or None where it may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    parts: list[bytes] = []
    try:
        while most > 0 and (data := os.read(descriptor, min(CHUNK, most))):
            parts.append(data)
            most -= len(data)
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return b"".join(parts)


def memory(pid: str) -> Iterator[bytes]:
    """The readable regions of a process's memory."""
    maps = read(f"/proc/{pid}/maps")
    try:
        memory_file = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError:
        return
    try:
        for line in (maps or b"").decode().splitlines():
            region = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
            if region is None or "[v" in line:  # vvar and vsyscall are the kernel's
                continue
            start, end = (int(number, 16) for number in region.groups())
            try:
                yield os.pread(memory_file, min(end - start, LONGEST_FILE), start)
            except OSError:
                continue
    finally:
        os.close(memory_file)


def look_at_process(pid: str, needles: Needles) -> None:
    """Every file of the process and of its threads, what its descriptors lead to, and its memory."""
    for top in (f"/proc/{pid}", *(f"/proc/{pid}/task/{task}" for task in listed(f"/proc/{pid}/task"))):
        paths = [f"{top}/{name}" for name in listed(top) if name not in UNTOLD]
        paths += [f"{top}/{below}/{name}" for below in ("fd", "map_files", "cwd") for name in listed(f"{top}/{below}")]
        for path in paths:
            if os.path.isfile(path) and (data := read(path)) is not None:
                look(f"proc {path.removeprefix(top).split('/')[1]}", path, data, needles)
    for region in memory(pid):
        look("proc mem", pid, region, needles)


def attack(pid: int) -> None:
    """Ways into another process that need no file of /proc."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    for name, request in (("PTRACE_ATTACH", PTRACE_ATTACH), ("PTRACE_SEIZE", PTRACE_SEIZE)):
        looked["ways in"] += 1
        if libc.ptrace(request, pid, None, None) == 0:
            found.append(f"{name} {pid}")
            libc.ptrace(PTRACE_DETACH, pid, None, None)
    if os.uname().machine == "x86_64":
        looked["ways in"] += 1
        buffer = ctypes.create_string_buffer(8)
        local = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
        remote = (ctypes.c_size_t * 2)(0x400000, 8)
        libc.syscall(PROCESS_VM_READV, pid, local, 1, remote, 1, 0)
        if ctypes.get_errno() not in (1, 3, 38):  # EPERM, ESRCH, ENOSYS; EFAULT would mean that it may
            found.append(f"process_vm_readv {pid}: errno {ctypes.get_errno()}")
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    for number in range(32):
        looked["ways in"] += 1
        if libc.syscall(PIDFD_GETFD, pidfd, number, 0) >= 0:
            found.append(f"pidfd_getfd {pid} {number}")
    os.close(pidfd)


def look_through_a_user_namespace(pid: str) -> None:
    """A user may be root in a namespace of its own; that is nobody outside it."""
    for files in ("environ", "mem", "maps"):
        looked["user namespaces"] += 1
        script = f"cat /proc/{pid}/{files} | head -c 100"
        done = subprocess.run(["unshare", "-Ur", "sh", "-c", script], capture_output=True, check=False)
        if done.stdout:
            found.append(f"user namespace: /proc/{pid}/{files}")


def look_at_files(top: str, needles: Needles) -> None:
    for directory, _, files in os.walk(top):
        for name in files:
            path = f"{directory}/{name}"
            if not os.path.islink(path) and os.path.isfile(path) and (data := read(path)) is not None:
                look("files", path, data, needles)


def writable_mounts() -> list[str]:
    """Where a file could have been written since this container was made."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [path for _, path, kind, options, *_ in mounts if options.startswith("rw") and kind not in KERNEL]


def look_at_the_door(needles: Needles) -> None:
    """Every route, method and kind of wrong request; what is looked at is all of each answer."""
    host, key = os.environ["DRIVER_DOOR_URL"].removeprefix("http://"), os.environ["DRIVER_DOOR_KEY"]
    model = os.environ["DRIVER_MODEL"]
    good = json.dumps({"model": model, "input": [], "messages": [], "max_tokens": 1, "stream": True}).encode()
    bodies = [b"", b"{", b"[" * 1000, b'{"model":"other"}', good, gzip.compress(good), b"\xff\0"]
    routes = ["/", "/v1/models", "/v1/responses", "/v1/chat/completions", "/v1/messages", "/review/observations"]
    routes += ["/v1/messages/count_tokens", "/internal/agent/next", "/v1/../next", "/v1/models?x=%00"]
    keys = [{"authorization": f"Bearer {key}"}, {"x-api-key": key}, {"authorization": "Bearer wrong"}, {}]
    extras: list[dict[str, str]] = [{}, {"content-encoding": "gzip"}, {"x-agent-run": "other", "cookie": "a=b"}]
    for route in routes:
        for method in ("GET", "POST", "TRACE", "OPTIONS", "CONNECT"):
            for body in bodies if method == "POST" else [b""]:
                for proof in keys:
                    for extra in extras if body == good else extras[:1]:
                        ask(host, method, route, body, proof | extra, needles)
    ask(host, "GET", "/" + "x" * 100_000, b"", {}, needles)
    ask(host, "GET", "/v1/models", b"", {"x" * 1000: "y" * 70_000}, needles)


def ask(host: str, method: str, route: str, body: bytes, headers: dict[str, str], needles: Needles) -> None:
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request(method, route, body, headers)
        answer = connection.getresponse()
        whole = f"{answer.status} {answer.reason}\n{answer.msg}\n".encode()
        try:
            whole += answer.read()
        except http.client.IncompleteRead as broken:
            whole += broken.partial
        look(f"door {answer.status}", f"{method} {route}", whole, needles)
    except (OSError, http.client.HTTPException):
        looked["door broken off"] += 1
    finally:
        connection.close()


def listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def look_everywhere(needles: Needles) -> None:
    for pid in filter(str.isdigit, listed("/proc")):
        look_at_process(pid, needles)
        if int(pid) != os.getpid():
            attack(int(pid))
    look_through_a_user_namespace(str(os.getppid()))
    for path in ("/proc/kcore", "/dev/mem", "/dev/kmem", "/dev/vda"):
        looked["kernel"] += 1
        if read(path, 16):
            found.append(path)
    for top in writable_mounts():
        look_at_files(top, needles)
    look_at_the_door(needles)
    for region in memory("self"):
        look("own mem", "self", region, needles)


def check_that_it_would_find() -> list[str]:
    """Where it found a decoy that a child of the same user holds, and a file."""
    decoy = base64.b64encode(os.urandom(24)).decode()
    hold = "import os, sys; held = os.environ['DECOY']; print('ready', flush=True); sys.stdin.read()"
    planted = Path(os.environ["TMPDIR"], "planted")
    planted.write_text(decoy)
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", hold],
        env={"DECOY": decoy},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    needles = Needles([decoy.encode().translate(SHIFT)])
    look_at_process(str(child.pid), needles)
    look_at_files(os.environ["TMPDIR"], needles)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    planted.unlink()
    kinds = sorted({line.partition(":")[0] for line in found})
    found.clear()
    looked.clear()
    return kinds


def main() -> None:
    control = check_that_it_would_find()
    look_everywhere(Needles([os.fsencode(text) for text in sys.argv[1:]]))
    Path("out/result.json").write_text(json.dumps({"control": control, "looked": looked, "found": found}))


main()
