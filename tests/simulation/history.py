"""What happened in one world, in order: what drivers sent and heard, what the gateway made of it, who worked."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Moment:
    """One thing that happened, `at` seconds of the machine's boot time. `who` is a driver, `gateway` or `world`."""

    at: float
    who: str
    what: str
    fields: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(name) from None

    def __str__(self) -> str:
        told = "  ".join(f"{name}={_told(value)}" for name, value in self.fields.items() if value is not None)
        return f"{self.at:10.3f}  {self.who:<9} {self.what:<9} {told}".rstrip()


class History:
    """All moments of one world."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.moments: list[Moment] = []

    def note(self, who: str, what: str, **fields: Any) -> None:
        self.moments.append(Moment(self._now(), who, what, fields))


def trace(moments: Iterable[Moment]) -> str:
    """Moments for a person, a line each."""
    return "\n".join(map(str, moments))


def _told(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
