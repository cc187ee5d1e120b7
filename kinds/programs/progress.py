"""What a person reads while the program works: one line for each thing that happens."""

import sys
from collections.abc import Mapping
from typing import Any, Final

from kinds.programs.observations import Observation
from kinds.programs.text import one_line

_LINE_CHARACTERS: Final = 200


def say(text: str) -> None:
    """Print one line. Whatever is in it, it stays one line and is bounded."""
    # Bytes, because what the surroundings say about the terminal's encoding is no reason to fail.
    sys.stdout.buffer.write(one_line(text, _LINE_CHARACTERS).encode() + b"\n")
    sys.stdout.buffer.flush()


def tool_line(name: str, arguments: Mapping[str, Any]) -> str:
    """A tool call in a few words."""
    words = " ".join(str(value) for value in arguments.values() if isinstance(value, str | int))
    return one_line(f"{name} {words}".strip(), 100)


def observation_line(observation: Observation) -> str:
    """A recorded observation in one line, with its first place."""
    severity = f" {observation.severity}" if observation.severity else ""
    place = ""
    if observation.citations:
        first = observation.citations[0]
        place = f" at {first.path}:{first.start_line}"
    return f"{observation.practice}: {observation.outcome}{severity}{place}"
