"""The kinds that are installed: which can be offered, and why another one cannot.

A kind is found through the entry-point group `driver.kinds`, so another distribution can add one (docs/kinds.md).
What the metadata tells is known at once. Each kind is then imported and looked at, so that a broken one is told of
by name when the driver starts, and neither stops the others nor is found out by a run.
"""

import inspect
import re
from collections import defaultdict
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio import to_thread

from driver.errors import DriverError, UnknownKind
from driver.log import Log

if TYPE_CHECKING:
    from driver.kind import Kind

ENTRY_POINT_GROUP: Final = "driver.kinds"
LOADING_SECONDS: Final = 30.0
"""How long one kind may take to be imported and looked at."""

_VALUE: Final = re.compile(r"(?P<module>\w+(\.\w+)*)\s*:\s*(?P<name>\w+(\.\w+)*)")


class BrokenKind(DriverError):
    """A kind cannot be used."""


class Kinds:
    """The kinds of one driver. `load` is called once; before, nothing of a kind was imported."""

    def __init__(self, points: Iterable[EntryPoint]) -> None:
        self._classes: dict[str, Any] = {}
        self._looked_at: dict[str, anyio.Event] = {}
        self._broken: dict[str, str] = {}
        self._points: dict[str, EntryPoint] = {}
        self._twice: dict[str, list[EntryPoint]] = {}
        named: defaultdict[str, list[EntryPoint]] = defaultdict(list)
        for point in points:
            named[point.name].append(point)
        for name, found in named.items():
            if len({point.value for point in found}) > 1:
                self._twice[name] = found
            else:
                self._points[name] = found[0]
            self._looked_at[name] = anyio.Event()

    @property
    def names(self) -> list[str]:
        """The kinds to offer, sorted: until `load` has looked at one it is taken to work."""
        return sorted(self._points.keys() - self._broken.keys())

    async def load(self, log: Log, *, seconds: float = LOADING_SECONDS) -> None:
        """Import each kind and look at it, in a thread; log each one that is broken, and offer it no more.

        One that takes longer than `seconds` is broken, and its thread is left to itself.
        """
        for name, found in sorted(self._twice.items()):
            values = ", ".join(
                f"{point.value} by {_distribution(point)}" for point in sorted(found, key=attrgetter("value"))
            )
            distributions = sorted({_distribution(point) for point in found})
            self._tell(log, name, distributions, f"it is registered twice: {values}")
        for name, point in sorted(self._points.items()):
            reason = f"{point.value} was not imported within {seconds:g} s"
            with anyio.move_on_after(seconds):
                try:
                    self._classes[name] = await to_thread.run_sync(_checked, point.value, abandon_on_cancel=True)
                except BrokenKind as broken:
                    reason = str(broken)
            if name in self._classes:
                self._looked_at[name].set()
            else:
                self._tell(log, name, [_distribution(point)], reason)

    async def make(self, name: str) -> "Kind":
        """A new runner for a run of that kind, once `load` has looked at it.

        Raises UnknownKind, and whatever the kind's class raises.
        """
        if name in self._looked_at:
            await self._looked_at[name].wait()
        if name in self._classes:
            kind: Kind = await to_thread.run_sync(self._classes[name])
            return kind
        if name in self._broken:
            raise UnknownKind(f"the runner that is installed for kind {name} cannot be used: {self._broken[name]}")
        raise UnknownKind(f"no runner is installed for kind {name}")

    def _tell(self, log: Log, name: str, distributions: list[str], reason: str) -> None:
        self._broken[name] = reason
        self._looked_at[name].set()
        log.error("kind.broken", kind=name, distribution=", ".join(distributions), reason=reason)


def installed_kinds() -> Kinds:
    """The kinds of every distribution that this interpreter can see."""
    return Kinds(entry_points(group=ENTRY_POINT_GROUP))


def _checked(value: str) -> Any:
    """The class that an entry point names. Raises BrokenKind."""
    told = _VALUE.fullmatch(value)
    if told is None:
        raise BrokenKind(f"its entry point must be `module:Class`, and is `{value}`")
    try:
        found = attrgetter(told["name"])(import_module(told["module"]))
        _require_shape(found, value)
    except BrokenKind:
        raise
    except BaseException as error:  # what a module does at import may raise anything, SystemExit too
        raise BrokenKind(f"{value} cannot be imported ({_said(error)})") from error
    return found


def _require_shape(found: Any, value: str) -> None:
    if not inspect.isclass(found):
        raise BrokenKind(f"{value} is a {type(found).__name__}, and must be a class")
    try:
        made = found()
    except BaseException as error:
        raise BrokenKind(f"{value} cannot be made without arguments ({_said(error)})") from error
    run = getattr(made, "run", None)
    if not inspect.iscoroutinefunction(run):
        raise BrokenKind(f"{value} has no `async def run(self, held)`")
    try:
        inspect.signature(run).bind(None)
    except TypeError as error:
        raise BrokenKind(f"{value}.run must take one argument, the held run ({error})") from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "unknown"
