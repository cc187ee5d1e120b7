"""The disk is bounded: 96 MiB in files whose paths are longer than the kernel takes (PATH_MAX)."""

import os
import signal
import time

MIB = 1 << 20
signal.alarm(60)
os.chdir("work")
for _ in range(60):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
for number in range(12):
    with open(str(number), "wb") as file:
        file.write(b"x" * 8 * MIB)
time.sleep(60)
