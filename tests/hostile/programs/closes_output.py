"""A program that closes its output and lives on ends in its time all the same."""

import os
import signal
import time

signal.alarm(60)
for descriptor in (0, 1, 2):
    os.close(descriptor)
while True:
    time.sleep(1)
