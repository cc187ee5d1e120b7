"""Memory is bounded: 200 MiB in a process that has left the program's session and lost its parent."""

import os
import signal
import time

signal.alarm(60)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.alarm(60)
    held = b"x" * (200 << 20)
    time.sleep(60)
time.sleep(60)
