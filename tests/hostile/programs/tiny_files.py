"""The disk is bounded: files without end that hold nothing, with names as long as they may be."""

import os
import signal

signal.alarm(60)
number = 0
while True:
    directory = f"work/{number}"
    os.mkdir(directory)
    for file in range(5000):
        os.close(os.open(f"{directory}/{file:0>250}", os.O_CREAT | os.O_WRONLY))
    number += 1
