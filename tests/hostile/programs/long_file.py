"""The length of a file is bounded: one file that grows without end, and SIGXFSZ blocked in a thread beside."""

import signal
import threading
import time

signal.alarm(60)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
with open("work/long", "wb") as file:
    while True:
        file.write(b"x" * (1 << 20))
