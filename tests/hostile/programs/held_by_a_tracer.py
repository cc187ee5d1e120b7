"""A program that is held by a tracer ends in its time all the same."""

import ctypes
import os
import signal
import time

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
PR_SET_PTRACER, ANYBODY = 0x59616D61, 2**64 - 1

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
libc.prctl(PR_SET_PTRACER, ANYBODY, 0, 0, 0)
program = os.getpid()
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.alarm(60)
    seized = libc.ptrace(PTRACE_SEIZE, program, None, None)
    interrupted = libc.ptrace(PTRACE_INTERRUPT, program, None, None)
    print("traces" if (seized, interrupted) == (0, 0) else os.strerror(ctypes.get_errno()), flush=True)
    time.sleep(60)
signal.alarm(60)
while True:
    time.sleep(1)
