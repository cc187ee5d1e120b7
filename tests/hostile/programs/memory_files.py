"""Memory is bounded: 200 MiB in files that are in memory only, and that no process has mapped (memfd_create(2))."""

import os
import signal
import time

MIB = 1 << 20
signal.alarm(60)
for _ in range(20):
    file = os.memfd_create("hidden")
    for _ in range(10):
        os.write(file, b"x" * MIB)
time.sleep(60)
