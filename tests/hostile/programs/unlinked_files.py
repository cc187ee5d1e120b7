"""The disk is bounded: 96 MiB in files that have no name any more, and that other processes hold open."""

import os
import signal
import time

MIB = 1 << 20
CONTENT = bytes([120]) * 8 * MIB  # made once: each child would keep a copy, and the bound on memory be passed first
signal.alarm(60)
for number in range(12):
    file = os.open(f"work/{number}", os.O_RDWR | os.O_CREAT)
    os.write(file, CONTENT)
    os.unlink(f"work/{number}")
    if os.fork() == 0:
        os.setsid()
        signal.alarm(60)
        time.sleep(60)
    os.close(file)
time.sleep(60)
