"""`python -m driver.stub` as a process."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.stub.support import TREE

COMMAND = [sys.executable, "-m", "driver.stub"]


def test_one_line_when_it_is_ready_and_a_quiet_end(tmp_path: Path) -> None:
    """The only line on stdout is the address, the token and the subject; SIGTERM ends it with 0."""
    process = subprocess.Popen(
        [*COMMAND, "--directory", str(TREE), "--results", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        ready = json.loads(process.stdout.readline())
        with urllib.request.urlopen(f"{ready['url']}/stub/state", timeout=10) as answer:
            state = json.load(answer)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=10)
    finally:
        process.kill()
        process.wait()
    assert set(ready) == {"url", "token", "subject"}
    assert ready["subject"] == state["subject"] == "review:1"
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--scenario", "none-such"], "stub: scenario none-such: no such file, and none of claim-lost, clean,"),
        (["--repository", "/none", "--range", "a..b"], "stub: /none: no such directory"),
        (["--repository", "/"], "stub: --repository and --range belong together"),
        (["--directory", "/none"], "stub: /none: no such directory"),
        (["--provider-url", "ftp://x", "--model", "m"], "stub: --provider-url: must begin with"),
        (["--provider-url", "http://[x", "--model", "m"], "stub: --provider-url: "),
        (["--provider-url", "http://x:70000", "--model", "m"], "stub: --provider-url: its port"),
        (["--results", "/dev/null/x"], "stub: --results: /dev/null/x: Not a directory"),
        (["--provider-url", "http://x"], "stub: --model: is required with --provider-url"),
        (
            ["--provider-url", "http://x", "--model", "m", "--provider-key-env", "NO_SUCH_KEY"],
            "stub: --provider-key-env: the variable NO_SUCH_KEY is not set",
        ),
    ],
)
def test_a_mistake_is_one_clear_line(arguments: list[str], complaint: str) -> None:
    """What the user got wrong is one line on stderr and exit 2, with nothing on stdout."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(complaint)
    assert done.stderr.count("\n") == 1
