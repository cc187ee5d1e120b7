"""A repository under review for tests of the change view."""

import json
import os
from pathlib import Path
from typing import Any

from kinds.change import derive_change
from kinds.changed import Totals
from kinds.programs.envelope import parse
from tests.kinds.review_case import ENVELOPE, Case, git, make_case, write_inputs

ENVELOPE_READ = parse(json.dumps(ENVELOPE).encode())


class Reviewed:
    """A repository under review that a test writes, and the view that was derived from it."""

    def __init__(self, tmp_path: Path) -> None:
        self.case: Case = make_case(tmp_path)
        self.root = self.case.workspace.layout.root
        self.repository = self.root / "repos" / "reviewed"
        self.repository.mkdir(parents=True)
        git(self.repository, "init", "--quiet")

    def write(self, name: str | bytes, content: bytes) -> None:
        path = os.path.join(os.fsencode(self.repository), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)

    async def derive(self, base: str, head: str) -> Totals:
        write_inputs(self.root, base, head)
        return await derive_change(self.case.held(), ENVELOPE_READ)

    @property
    def view(self) -> Path:
        return self.case.workspace.layout.work / "change"

    @property
    def files(self) -> list[dict[str, Any]]:
        files: list[dict[str, Any]] = json.loads((self.view / "files.json").read_bytes())
        return files

    @property
    def patch(self) -> bytes:
        return (self.view / "diff.patch").read_bytes()
