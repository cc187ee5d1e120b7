"""The image as anybody builds it, on a base that is made here: no container registry is asked for anything."""

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tests.image import machine

ROOT: Final = Path(__file__).parents[2]
BASE: Final = "localhost/base"
TIMESTAMP: Final = 1_700_000_000
REVISION: Final = "0123456789abcdef"
CANARY: Final = "canary-4f1d8a"
"""Stands in each secret of the build, so that one that stays behind is found."""

# As slim images do: what nobody reads, and what only the installation needs.
_LEFT_OUT: Final = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt/archives", "var/lib/apt/lists")
_SHOWN_LINES: Final = 40


class BuildFailed(Exception):
    """A tool failed; the message has its last lines."""


@dataclass
class Image:
    """A built image, as a registry would get it: its layers, lowest first, and its configuration."""

    layout: Path
    base_layers: int

    @cached_property
    def manifest(self) -> dict[str, Any]:
        (only,) = json.loads((self.layout / "index.json").read_bytes())["manifests"]
        return self._read(only["digest"])

    @cached_property
    def description(self) -> dict[str, Any]:
        """The whole configuration file: of what it runs with, of its layers, of how it was made."""
        return self._read(self.manifest["config"]["digest"])

    @property
    def config(self) -> dict[str, Any]:
        """What a container of it is started with."""
        found: dict[str, Any] = self.description["config"]
        return found

    @property
    def environment(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.config["Env"])

    @property
    def layers(self) -> list[Path]:
        """The layers that are ours: those above the base."""
        return [self._blob(layer["digest"]) for layer in self.manifest["layers"][self.base_layers :]]

    @property
    def digests(self) -> list[str]:
        """The digests of what is in our layers."""
        found: list[str] = self.description["rootfs"]["diff_ids"][self.base_layers :]
        return found

    def members(self) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
        """Each member of our layers with its content, as it is stored."""
        for layer in self.layers:
            with tarfile.open(layer, "r|gz") as archive:
                for member in archive:
                    reader = archive.extractfile(member) if member.isfile() else None
                    yield member, b"" if reader is None else reader.read()

    def _read(self, digest: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._blob(digest).read_bytes())
        return found

    def _blob(self, digest: str) -> Path:
        return self.layout / "blobs" / digest.replace(":", "/")


class Builder:
    """buildah with a storage of its own below `place`."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._buildah = ["buildah", "--root", str(place / "storage"), "--runroot", str(place / "run")]

    def make_base(self) -> None:
        """A Debian with Python and nothing else. Raises BuildFailed, LookupError."""
        suite, root = machine.suite(), self._place / "base"
        proxy = {"http_proxy": suite.proxy} if suite.proxy else {}
        made = ["debootstrap", "--variant=minbase", "--include=python3,ca-certificates"]
        self._run([*made, suite.name, str(root), suite.mirror], environment=proxy)
        for path in _LEFT_OUT:
            shutil.rmtree(root / path)
            (root / path).mkdir()
        (root / "etc/dpkg/dpkg.cfg.d/image").write_text("force-unsafe-io\n")
        container = self._run([*self._buildah, "from", "scratch"])
        self._run(["tar", "--numeric-owner", "-C", str(root), "-cf", str(self._place / "base.tar"), "."])
        self._run([*self._buildah, "add", "-q", container, str(self._place / "base.tar"), "/"])
        self._run([*self._buildah, "commit", "-q", "--rm", container, BASE])
        shutil.rmtree(root)
        (self._place / "base.tar").unlink()

    def build(self, name: str, **arguments: str) -> Image:
        """The Containerfile built from nothing but the base, with these build arguments. Raises BuildFailed."""
        given = {"BASE": BASE, "REVISION": REVISION, **arguments}
        command = [*self._buildah, "build", "--isolation", "chroot", "--no-cache", "--timestamp", str(TIMESTAMP)]
        for key, value in given.items():
            command += ["--build-arg", f"{key}={value}"]
        for secret, path in self._secrets().items():
            command += ["--secret", f"id={secret},src={path}"]
        self._run([*command, "-t", f"localhost/{name}", "-f", "Containerfile", "."], cwd=ROOT)
        layout = self._place / f"{name}-layout"
        self._run([*self._buildah, "push", "-q", f"localhost/{name}", f"oci:{layout}:latest"])
        return Image(layout, base_layers=1)

    def mounted(self, name: str) -> Path:
        """The file system of a container of that image."""
        container = self._run([*self._buildah, "from", f"localhost/{name}"])
        return Path(self._run([*self._buildah, "mount", container]))

    def _secrets(self) -> Mapping[str, Path]:
        written = {"pip.conf": machine.pip_configuration(), "npmrc": machine.npm_configuration()}
        authority = machine.authority()
        if authority is not None:
            written["ca.crt"] = authority.read_text()
        for name, text in written.items():
            (self._place / name).write_text(f"{text}# {CANARY}\n")
        return {name: self._place / name for name in written}

    def _run(self, command: list[str], cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
        """Its output, stripped. Raises BuildFailed."""
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=cwd, env={**os.environ, **(environment or {})}
        )
        if done.returncode != 0:
            lines = (done.stdout + done.stderr).splitlines()[-_SHOWN_LINES:]
            raise BuildFailed("\n".join([f"{command[0]} ended with {done.returncode}:", *lines]))
        return done.stdout.strip()


@contextmanager
def builder(place: Path) -> Iterator[Builder]:
    """A builder that stores in memory: half a GiB for each image. All of it is gone when the block is left."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0700,size=8g", "none", place], check=True)
    try:
        yield Builder(place)
    finally:
        # With the containers' file systems, and with what a tool left mounted when it failed.
        subprocess.run(["umount", "--recursive", "--lazy", place], check=True)
