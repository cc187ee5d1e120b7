"""Directories and identities for the workspace tests."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver.layout import Layout
from driver.workspace.empty import empty
from tests.driver.workspace.archives import FAST

NOBODY = 65534


@pytest.fixture
def layout() -> Iterator[Layout]:
    """An empty workspace, in memory where that is possible.

    Some file systems are slow at making files soon after many were removed.
    """
    parent = Path(tempfile.mkdtemp(dir=FAST, prefix="workspace-test-"))
    root = parent / "workspace"
    root.mkdir()
    try:
        yield Layout(root)
    finally:
        empty(parent)
        parent.rmdir()


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A directory of a user without privileges, who the test then is."""
    parent = Path(tempfile.mkdtemp(prefix="workspace-test-"))
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(parent, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield parent
    finally:
        if is_root:
            os.seteuid(0)
        for above, directories, _ in os.walk(parent):
            for name in directories:
                os.chmod(os.path.join(above, name), 0o700)
        shutil.rmtree(parent)
