"""The CLIs that are known, by the name that a setting uses."""

from typing import Final

from kinds.programs.agents.agent import Agent
from kinds.programs.agents.claude import CLAUDE
from kinds.programs.agents.codex import CODEX
from kinds.programs.agents.opencode import OPENCODE
from kinds.programs.agents.pi import PI

AGENTS: Final[dict[str, Agent]] = {"claude": CLAUDE, "codex": CODEX, "opencode": OPENCODE, "pi": PI}
