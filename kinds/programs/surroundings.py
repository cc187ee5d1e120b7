"""What every program is started with: the door, the model and the time, from the driver's variables."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kinds.programs.errors import InputsUnusable
from kinds.programs.exchange import Door


@dataclass(frozen=True)
class Surroundings:
    """`started` is when the program was started, on the clock of time.monotonic(); `work_seconds` count from then.

    `context_tokens` is how much the model takes at once, or None where nobody told.
    """

    workspace: Path
    door: Door
    wire: str
    model: str
    work_seconds: float
    started: float
    context_tokens: int | None = None


def surroundings(wire: str, started: float, environment: Mapping[str, str] = os.environ) -> Surroundings:
    """Read DRIVER_DOOR_URL, DRIVER_DOOR_KEY, DRIVER_MODEL and DRIVER_WORK_SECONDS. Raises InputsUnusable."""
    model = environment.get("DRIVER_MODEL", "")
    if not model:
        raise InputsUnusable("DRIVER_MODEL must be set")
    door = Door.at(environment.get("DRIVER_DOOR_URL", ""), environment.get("DRIVER_DOOR_KEY", ""))
    seconds = _seconds(environment.get("DRIVER_WORK_SECONDS", ""))
    return Surroundings(Path.cwd(), door, wire, model, seconds, started)


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputsUnusable("DRIVER_WORK_SECONDS must be a number of seconds above 0")
    return seconds
