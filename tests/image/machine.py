"""What the machine brings to build an image: its tools, and where it takes packages from.

No file of this project names a registry. Where this machine is told to use one of its own, that is handed to the
build as it would be by anybody: as secrets that no layer holds.
"""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TOOLS: Final = {
    "apt-get": "apt",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "getcap": "libcap2-bin",
    "runc": "runc",
}
"""Each tool and the package that it comes with."""
AUTHORITY: Final = "/run/secrets/ca.crt"
"""Where the Containerfile finds the certificate authority of a registry."""

_STORES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
_ASKED_OF_PIP: Final = ("index-url", "extra-index-url", "trusted-host", "proxy")


@dataclass(frozen=True)
class Suite:
    """A Debian that apt is configured for here: its mirror, its name, and the address of the proxy before it."""

    mirror: str
    name: str
    proxy: str


def problems() -> list[str]:
    """What keeps an image from being built and run here, and what to do about it."""
    found = [f"{tool} is missing: apt-get install {name}" for tool, name in TOOLS.items() if shutil.which(tool) is None]
    if os.geteuid() != 0:
        found.append("this is not root: images are built in chroots, and run in cgroups of their own")
    elif not _mounts():
        found.append("nothing can be mounted here (CAP_SYS_ADMIN is missing): use a machine, or a privileged container")
    return found


def suite() -> Suite:
    """The main part of the Debian that runs here, as apt is configured. Raises LookupError when it is none."""
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    listed = _lines(
        "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"
    )
    for uri, release, component in (line.split() for line in listed):
        if (release, component) == (codename, "main"):
            proxy = "".join(_lines("apt-config", "shell", "proxy", "Acquire::http::Proxy")).partition("=")[2]
            return Suite(uri, release, proxy.strip("'"))
    raise LookupError(f"apt is configured for no main part of {codename or 'this system'}, so no base can be made")


def authority() -> Path | None:
    """The certificates that clients trust here, or None where there is no such file."""
    named = os.environ.get("SSL_CERT_FILE", "")
    return next((path for path in map(Path, (named, *_STORES)) if str(path) != "." and path.is_file()), None)


def pip_configuration() -> str:
    """pip.conf for the build: the index of this machine, without what lies in its own files."""
    asked = {}
    for line in _lines(sys.executable, "-m", "pip", "config", "list"):
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2].strip(":")
        words = [word for word in value.strip("'").split() if not word.startswith("file:")]
        if name in _ASKED_OF_PIP and words:
            asked[name] = " ".join(words)
    if authority() is not None:
        asked["cert"] = AUTHORITY
    return "".join(["[global]\n", *(f"{name} = {value}\n" for name, value in asked.items())])


def npm_configuration() -> str:
    """.npmrc for the build: the registry of this machine."""
    registry = "".join(_lines("npm", "config", "get", "registry")) if shutil.which("npm") else ""
    lines = [f"registry={registry}\n"] if registry else []
    return "".join([*lines, f"cafile={AUTHORITY}\n"] if authority() else lines)


def _lines(*command: str) -> Sequence[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def _mounts() -> bool:
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(probe, check=False, capture_output=True).returncode == 0
