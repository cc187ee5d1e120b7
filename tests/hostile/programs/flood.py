"""Output is bounded: 256 MiB without a line end, after a line that matters and before another."""

import os
import signal

signal.alarm(100)


def write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


write(b"the first line\n")
block = b"x" * (1 << 20)
for _ in range(256):
    write(block)
write(b"\nthe last line\n")
