"""Nothing survives: a process that is held by another that traces it, at its exit too."""

import ctypes
import os
import signal
import time

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_O_TRACEEXIT = 0x4206, 0x4207, 0x40
PR_SET_PTRACER, ANYBODY = 0x59616D61, 2**64 - 1

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]

reader, writer = os.pipe()
held = os.fork()
if held == 0:
    os.setsid()
    signal.alarm(60)
    libc.prctl(PR_SET_PTRACER, ANYBODY, 0, 0, 0)
    os.write(writer, b".")
    time.sleep(60)
os.read(reader, 1)
if os.fork() == 0:
    os.setsid()
    signal.alarm(60)
    seized = libc.ptrace(PTRACE_SEIZE, held, None, PTRACE_O_TRACEEXIT)
    interrupted = libc.ptrace(PTRACE_INTERRUPT, held, None, None)
    print("traces its sibling" if (seized, interrupted) == (0, 0) else os.strerror(ctypes.get_errno()), flush=True)
    os.write(writer, b".")
    time.sleep(60)
os.read(reader, 1)
