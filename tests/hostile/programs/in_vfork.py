"""Nothing survives: processes in uninterruptible sleep, each blocked in vfork(2) until its child ends."""

import ctypes
import os
import platform
import signal
import time

CLONE_VFORK = 0x4000
SYS_CLONE = {"x86_64": 56}.get(platform.machine(), 220)  # asm/unistd.h: x86-64, and the generic table
libc = ctypes.CDLL(None)


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(") ")[2][0]


for _ in range(3):
    if (blocked := os.fork()) == 0:
        os.setsid()
        if libc.syscall(SYS_CLONE, CLONE_VFORK | signal.SIGCHLD, 0, 0, 0, 0) == 0:
            os.setsid()
            signal.alarm(60)
            time.sleep(60)
        os._exit(0)
    while state(blocked) != "D":
        pass
print("blocked in vfork", flush=True)
