"""A program in uninterruptible sleep, where no SIGTERM reaches it, ends in its time all the same."""

import ctypes
import os
import platform
import signal
import time

CLONE_VFORK = 0x4000
SYS_CLONE = {"x86_64": 56}.get(platform.machine(), 220)  # asm/unistd.h: x86-64, and the generic table

if ctypes.CDLL(None).syscall(SYS_CLONE, CLONE_VFORK | signal.SIGCHLD, 0, 0, 0, 0) == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.alarm(60)
    time.sleep(60)
