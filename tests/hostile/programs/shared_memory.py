"""Memory is bounded: 200 MiB that several processes share, each of them holding a part in its own name."""

import mmap
import os
import signal
import time

MIB = 1 << 20
signal.alarm(60)
shared = mmap.mmap(-1, 200 * MIB)
for part in range(4):
    if os.fork() == 0:
        for at in range(part * 50 * MIB, (part + 1) * 50 * MIB, mmap.PAGESIZE):
            shared[at] = 1
        signal.alarm(60)
        time.sleep(60)
time.sleep(60)
