"""Where things are below the workspace (docs/kinds.md, "The workspace")."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """The paths below one workspace. All but `work`, `sessions` and `out` are inputs."""

    root: Path

    @property
    def context(self) -> Path:
        return self.root / "context"

    @property
    def repos(self) -> Path:
        return self.root / "repos"

    @property
    def inputs(self) -> Path:
        return self.root / "inputs"

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def sessions(self) -> Path:
        return self.root / ".sessions"

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def home(self) -> Path:
        return self.work / "home"

    @property
    def temporary(self) -> Path:
        return self.work / "tmp"

    @property
    def writable(self) -> tuple[Path, ...]:
        """The directories that programs may write below; they are made after each unpacking."""
        return (self.work, self.sessions, self.out, self.home, self.temporary)
