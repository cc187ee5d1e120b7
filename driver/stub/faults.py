"""Which fault strikes which call. The number of a call counts the calls at its place, from 1."""

from collections import Counter
from collections.abc import Mapping, Sequence

from driver.stub.fault_table import FaultTable, Place


class Faults:
    """The faults of a scenario and how often each place was called, `calls` of them before."""

    def __init__(self, faults: Sequence[FaultTable], calls: Mapping[str, int] | None = None) -> None:
        self._faults = list(faults)
        self._calls: Counter[str] = Counter(calls)

    @property
    def calls(self) -> dict[str, int]:
        """How often each place was called."""
        return dict(self._calls)

    def add(self, fault: FaultTable) -> None:
        """One more fault, from now on. Its `nth` counts all calls at the place, also those before."""
        self._faults.append(fault)

    def strike(self, at: Place) -> "Strikes":
        """Count one call at a place; the faults that strike it."""
        self._calls[at] += 1
        nth = self._calls[at]
        return Strikes(nth, [f for f in self._faults if f.at == at and f.nth in (nth, "every")])


class Strikes:
    """The faults that strike one call, by what they do."""

    def __init__(self, nth: int = 0, faults: Sequence[FaultTable] = ()) -> None:
        self.nth = nth
        self._faults = list(faults)

    @property
    def names(self) -> list[str]:
        return [fault.what for fault in self._faults]

    def get(self, what: str) -> FaultTable | None:
        """The fault of that name, or None."""
        return next((fault for fault in self._faults if fault.what == what), None)

    def __contains__(self, what: str) -> bool:
        return self.get(what) is not None
