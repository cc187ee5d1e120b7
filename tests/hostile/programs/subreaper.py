"""Nothing survives: a process that makes itself the one to which orphans come back, and starts them again."""

import ctypes
import os
import signal
import time

PR_SET_CHILD_SUBREAPER = 36

if os.fork() == 0:
    os.setsid()
    signal.alarm(60)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    print("reaps", flush=True)
    while True:
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
                time.sleep(60)
            os._exit(0)
        os.wait()
        time.sleep(0.2)
time.sleep(0.5)
