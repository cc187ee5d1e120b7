"""Interpreters in which other distributions add kinds."""

import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path


def python_with_kind(directory: Path, name: str, source: str) -> Path:
    """A DRIVER_PYTHON whose driver finds the class `Added` of `source` as the kind `name`."""
    (directory / "added_kind.py").write_text(textwrap.dedent(source))
    add_distribution(directory, "added-kind", {name: "added_kind:Added"})
    return python_seeing(directory)


def add_distribution(directory: Path, name: str, kinds: Mapping[str, str]) -> None:
    """The metadata of an installed distribution whose entry points name these kinds and where they are."""
    metadata = directory / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = "".join(f"{kind} = {value}\n" for kind, value in kinds.items())
    (metadata / "entry_points.txt").write_text(f"[driver.kinds]\n{points}")


def install(directory: Path, project: Path) -> None:
    """Build a project and install it into `directory`, from what is on this machine alone."""
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(directory), str(project)], check=True
    )


def python_seeing(directory: Path) -> Path:
    """A DRIVER_PYTHON whose driver sees the distributions in `directory`, besides those of this interpreter."""
    start = f"import sys; sys.path.append({str(directory)!r}); sys.argv[1:] = []; import driver.__main__ as m; m.main()"
    interpreter = directory / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} -I -c "{start}"\n')
    interpreter.chmod(0o755)
    return interpreter
