"""Nothing survives: processes that stop themselves, in sessions of their own, and one that stops all others."""

import os
import signal
import time

stopped = []
for _ in range(5):
    if (pid := os.fork()) == 0:
        os.setsid()
        signal.alarm(60)
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(60)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    stopped.append(pid)
if os.fork() == 0:
    signal.alarm(60)
    while True:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(0.01)
