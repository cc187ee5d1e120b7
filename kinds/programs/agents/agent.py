"""What is known of a CLI: how it is started on a session, and what its output tells."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kinds.programs.wires import Usage

KEY_VARIABLE: Final = "DRIVER_DOOR_KEY"
"""Where a configuration names the door's key: a file that holds the name holds no secret."""


@dataclass(frozen=True)
class Place:
    """Where one session of a CLI runs. `home` is a directory of its own; `door` is `http://host:port`."""

    workspace: Path
    home: Path
    door: str
    key: str
    model: str
    wire: str
    context_tokens: int


@dataclass(frozen=True)
class Launch:
    """How a CLI is started: what follows its name, its variables, and its files below its home.

    It works in the workspace, or in `directory` below its home.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)
    directory: str | None = None


@dataclass(frozen=True)
class Agent:
    """One CLI. The first of `wires` is used where nobody chose; `memory` is what one session takes, in bytes.

    `usage` reads one line of its output, which is a JSON object: the tokens of an answered model call, or None. A CLI
    that tells the tokens of a session only at its end has `answered` too: whether a line shows an answered call.
    """

    command: str
    wires: tuple[str, ...]
    memory: int
    launch: Callable[[Place], Launch]
    usage: Callable[[Mapping[str, Any]], Usage | None]
    answered: Callable[[Mapping[str, Any]], bool] | None = None


def inside(value: Any, *names: str) -> Any:
    """What stands in nested objects under these names, or None."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def count(value: Any, *names: str) -> int:
    """A number of tokens that stands there; 0 for whatever is none."""
    found = inside(value, *names)
    return found if type(found) is int and found >= 0 else 0
