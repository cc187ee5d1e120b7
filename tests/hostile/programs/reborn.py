"""Nothing survives: processes that are born during the sweep, each the child of one that has just ended."""

import os
import time

END = time.monotonic() + 60


def be_reborn(pause: float) -> None:
    while time.monotonic() < END:
        if os.fork():
            os._exit(0)
        os.setsid()
        time.sleep(pause)
    os._exit(0)


# As fast as it goes, and slowly enough to be somebody else in each look.
for pause in (0.0, 0.0, 0.005, 0.02):
    if os.fork() == 0:
        be_reborn(pause)
