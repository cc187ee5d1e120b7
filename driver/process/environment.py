"""The exact environment of a program (docs/kinds.md, "Programs").

It is made from nothing: a variable of the driver reaches a program only where this page names it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from driver.gateway.wire import Run
from driver.layout import Layout

_DEFAULTS: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
}


@dataclass(frozen=True)
class DoorAddress:
    """Where a run's model door listens (`http://127.0.0.1:port`), and the key that it asks for."""

    url: str
    key: str

    def __repr__(self) -> str:
        return f"DoorAddress(url={self.url!r}, key='***')"


@dataclass(frozen=True)
class ProgramFacts:
    """What a run's programs may know.

    `work_seconds` tells the seconds left until the work deadline. `host` is the driver's own environment,
    of which PATH, LANG and TZ are passed on.
    """

    run: Run
    model: str
    layout: Layout
    work_seconds: Callable[[], float]
    host: Mapping[str, str]


def program_environment(facts: ProgramFacts, door: DoorAddress | None = None) -> dict[str, str]:
    """The whole environment of a program of this run; with `door`, the model's address and key too."""
    environment = {name: facts.host.get(name) or default for name, default in _DEFAULTS.items()}
    environment |= {
        "HOME": str(facts.layout.home),
        "TMPDIR": str(facts.layout.temporary),
        "DRIVER_RUN_ID": facts.run.id,
        "DRIVER_RUN_KIND": facts.run.kind,
        "DRIVER_RUN_ATTEMPT": str(facts.run.attempt),
        "DRIVER_WORKSPACE": str(facts.layout.root),
        "DRIVER_WORK_SECONDS": str(max(0, int(facts.work_seconds()))),
        "DRIVER_MODEL": facts.model,
    }
    if door is not None:
        environment |= _door_environment(door)
    return environment


def _door_environment(door: DoorAddress) -> dict[str, str]:
    # The clients of the two vendors differ in who adds "/v1" to the base address.
    return {
        "DRIVER_DOOR_URL": door.url,
        "DRIVER_DOOR_KEY": door.key,
        "OPENAI_BASE_URL": f"{door.url}/v1",
        "OPENAI_API_KEY": door.key,
        "ANTHROPIC_BASE_URL": door.url,
        "ANTHROPIC_API_KEY": door.key,
    }
