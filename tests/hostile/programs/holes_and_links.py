"""What only looks large costs nothing: a file of 50 MiB that is one hole, and 1,000 names of one of 8 MiB."""

import os
import time

MIB = 1 << 20
with open("work/hole", "wb") as file:
    file.truncate(50 * MIB)
with open("work/one", "wb") as file:
    file.write(b"x" * 8 * MIB)
for number in range(1000):
    os.link("work/one", f"work/link-{number}")
time.sleep(7)  # longer than between two looks at the disk
os.makedirs("out", exist_ok=True)
