"""Which CLI the sessions of a measurement have, and where they keep their things."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import anyio

from kinds.programs.agents.agent import Agent


@dataclass(frozen=True)
class Cli:
    """A CLI and where it is. `wire` is one of the agent's."""

    name: str
    agent: Agent
    path: str
    wire: str


@dataclass
class Site:
    """Where sessions keep their things: `.sessions/agents/<n>` and, as their homes, `<home>/agents/<n>`.

    `checks` lets one thread at a time work on the book.
    """

    workspace: Path
    home: Path
    checks: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1))
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def number(self) -> int:
        """The next session's number."""
        return next(self._numbers)

    def make(self, number: int) -> tuple[Path, Path]:
        """A session's directory and home, new. Raises OSError."""
        places = [base / "agents" / str(number) for base in (self.workspace / ".sessions", self.home)]
        for place in places:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.mkdir(mode=0o700)
        return places[0], places[1]
