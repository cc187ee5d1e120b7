"""Nothing survives: a PID namespace of its own, whose PID 1 ignores what can be ignored."""

import os
import subprocess
import sys

INSIDE = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
if os.fork():
    print("inside" if os.getpid() == 1 else "no namespace", flush=True)
time.sleep(60)
"""
command = [sys.executable, "-I", "-S", "-c", INSIDE]
made = (
    subprocess.run(["unshare", "--user", "--pid", "--fork", "true"], capture_output=True, check=False).returncode == 0
)
if made:
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", *command]
started = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
assert started.stdout is not None
os.write(1, started.stdout.readline())
