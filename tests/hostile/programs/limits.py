"""No limit can be raised: open files, core files, the length of a file, the rank when memory is short, niceness."""

import os
import resource
import signal
import time

signal.alarm(30)


def score() -> int:
    with open("/proc/self/oom_score_adj") as file:
        return int(file.read())


# They are set right after the start.
patience = time.monotonic() + 5
while (score() < 500 or resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY) and (
    time.monotonic() < patience
):
    time.sleep(0.01)
for name in ("RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_FSIZE"):
    hard = resource.getrlimit(getattr(resource, name))[1]
    try:
        resource.setrlimit(getattr(resource, name), (hard + 1, hard + 1))
        print(f"BROKEN: {name} was raised")
    except (ValueError, OSError):
        print(f"{name} stays")
try:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("0")  # what it inherits, and what the kernel alone would let it go back to
    print(f"BROKEN: oom_score_adj is {score()}")
except OSError:
    print("oom_score_adj stays")
try:
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1)
    print("BROKEN: it is less nice")
except OSError:
    print("niceness stays")
opened: list[int] = []
try:
    while len(opened) < 200_000:
        opened.append(os.open("/dev/null", os.O_RDONLY))
    print("BROKEN: files without end were opened")
except OSError as error:
    print(error.strerror)
for descriptor in opened:
    os.close(descriptor)
if (child := os.fork()) == 0:
    os.chdir("work")
    os.abort()
_, status = os.waitpid(child, 0)
print(
    "BROKEN: a core file" if os.WCOREDUMP(status) or any("core" in name for name in os.listdir("work")) else "no core"
)
