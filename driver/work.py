"""Sections of work that a stop cuts short, while what follows them still runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from driver.kind import StopReason


class Section:
    """One section; `stopped` tells why it was cut short, once it was."""

    def __init__(self) -> None:
        self.stopped: StopReason | None = None


class WorkSections:
    """All sections of one run. A stop is latched: a section entered after it is left at its first wait."""

    def __init__(self) -> None:
        self._reason: StopReason | None = None
        self._scopes: set[anyio.CancelScope] = set()
        self._has_cut = False

    @property
    def stopped(self) -> StopReason | None:
        """Why the work is stopped, now and later."""
        return self._reason

    @property
    def cut(self) -> StopReason | None:
        """Why a section was left early; None as long as each came to its own end."""
        return self._reason if self._has_cut else None

    def stop(self, reason: StopReason) -> bool:
        """Cut every section short, now and later; whether there was one. The first reason stays."""
        self._reason = self._reason or reason
        for scope in self._scopes:
            scope.cancel(reason.value)
        return bool(self._scopes)

    @contextmanager
    def section(self) -> Iterator[Section]:
        section = Section()
        with anyio.CancelScope() as scope:
            if self._reason is not None:
                scope.cancel(self._reason.value)
            self._scopes.add(scope)
            try:
                yield section
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            section.stopped = self._reason
            self._has_cut = True
