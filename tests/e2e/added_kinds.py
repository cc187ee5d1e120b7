"""An interpreter in which another distribution adds a kind."""

import sys
import textwrap
from pathlib import Path


def python_with_kind(directory: Path, name: str, source: str) -> Path:
    """A DRIVER_PYTHON whose driver finds the class `Added` of `source` as the kind `name`."""
    (directory / "added_kind.py").write_text(textwrap.dedent(source))
    metadata = directory / "added_kind-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: added-kind\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[driver.kinds]\n{name} = added_kind:Added\n")
    start = f"import sys; sys.path.append({str(directory)!r}); sys.argv[1:] = []; import driver.__main__ as m; m.main()"
    interpreter = directory / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} -I -c "{start}"\n')
    interpreter.chmod(0o755)
    return interpreter
