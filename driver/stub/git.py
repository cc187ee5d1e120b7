"""git, as the stub calls it: no hooks, no pager, no prompts, no configuration but ours.

The settings go through a configuration file of our own (GIT_CONFIG_GLOBAL): git hands that on to the
processes it starts for a local fetch, where it drops what was given with `-c` (git(1), "ENVIRONMENT").
"""

import os
import subprocess
from pathlib import Path
from typing import Final

from driver.stub.errors import RepositoryError

_GIT_SECONDS: Final = 300.0
_CONFIG: Final = """\
[safe]
    directory = *
[core]
    hooksPath = /dev/null
    fsmonitor = false
    symlinks = false
    logAllRefUpdates = false
    quotePath = false
    autocrlf = false
[pack]
    threads = 1
[gc]
    auto = 0
[maintenance]
    auto = false
[protocol]
    version = 2
[advice]
    detachedHead = false
[init]
    defaultBranch = main
"""


class Git:
    """git in one directory. `scratch` keeps the configuration file."""

    def __init__(self, directory: Path, scratch: Path) -> None:
        self._directory = directory
        self._config = scratch / "gitconfig"
        self._config.write_text(_CONFIG, "ascii")
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(scratch),
            "LANG": "C.UTF-8",
            "GIT_CONFIG_GLOBAL": str(self._config),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_PAGER": "cat",
            "GIT_NO_REPLACE_OBJECTS": "1",
            # A partial clone's configuration names a command that would fetch what is missing (git(1)).
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": "file",
        }

    def run(self, *arguments: str, environment: dict[str, str] | None = None) -> str:
        """What git prints. Blocks. Raises RepositoryError with git's first line of complaint."""
        done = self._call(arguments, environment or {})
        if done.returncode != 0:
            complaint = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise RepositoryError(f"git {arguments[0]}: {complaint[0] if complaint else done.returncode}")
        return done.stdout.decode("utf-8", "surrogateescape")

    def ok(self, *arguments: str) -> bool:
        """Whether git ends with 0."""
        return self._call(arguments, {}).returncode == 0

    def _call(self, arguments: tuple[str, ...], environment: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                ["git", "--no-pager", "-c", "safe.directory=*", *arguments],
                cwd=self._directory,
                env={**self._environment, **environment},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_GIT_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            raise RepositoryError("git is not installed") from None
        except subprocess.TimeoutExpired:
            raise RepositoryError(f"git {arguments[0]}: not done in {_GIT_SECONDS:g} s") from None
