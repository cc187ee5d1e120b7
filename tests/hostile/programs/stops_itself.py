"""A program that stops itself, again whenever it is woken, ends in its time all the same."""

import os
import signal

signal.alarm(60)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    os.kill(os.getpid(), signal.SIGSTOP)
