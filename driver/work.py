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

    @property
    def stopped(self) -> StopReason | None:
        return self._reason

    def stop(self, reason: StopReason) -> None:
        """Cut every section short, now and later. The first reason stays."""
        self._reason = self._reason or reason
        for scope in self._scopes:
            scope.cancel(reason.value)

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
