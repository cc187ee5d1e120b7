"""What the driver has before anything that a run needs was imported, and what its loop and a run tell each other."""

import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from driver.clock import Clock
from driver.isolation import IsolationGate
from driver.log import Log
from driver.process.children import Children
from driver.registry import Kinds
from driver.settings import Settings
from driver.stop import Stop


@dataclass(frozen=True)
class Front:
    """What there is from the start. `answered` is to be called for each answer of the gateway."""

    settings: Settings
    verify: ssl.SSLContext | bool
    answered: Callable[[], None]
    kinds: Kinds
    children: Children
    gate: IsolationGate
    stop: Stop
    clock: Clock
    rng: random.Random
    log: Log


class After(Enum):
    """What the loop does after a run."""

    PULL = auto()
    FAULT = auto()
    TAKEN_BACK = auto()
    UNISOLATED = auto()
