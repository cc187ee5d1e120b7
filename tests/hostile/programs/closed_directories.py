"""The disk is bounded: 96 MiB in files below directories that nobody may open."""

import os
import signal
import time

MIB = 1 << 20
signal.alarm(60)
os.makedirs("work/closed/within")
for number in range(12):
    with open(f"work/closed/within/{number}", "wb") as file:
        file.write(b"x" * 8 * MIB)
os.chmod("work/closed/within", 0)
os.chmod("work/closed", 0)
time.sleep(60)
