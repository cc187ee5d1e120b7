"""A program that hangs and ignores every signal that it may ends in its time all the same."""

import signal
import time

for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM}:
    signal.signal(number, signal.SIG_IGN)
signal.alarm(60)
while True:
    time.sleep(1)
