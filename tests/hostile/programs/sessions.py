"""Nothing survives: sessions, groups and double forks of its own, SIGTERM and SIGHUP ignored, and it ends well."""

import os
import signal
import time

signal.alarm(60)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)


def escape() -> None:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.setpgid(0, 0)
    if os.fork() == 0:
        os.setsid()
    time.sleep(60)


for _ in range(5):
    if os.fork() == 0:
        escape()
