"""One call of a program, as the door accounts for it."""

from dataclasses import dataclass
from enum import Enum

from driver.door.tally import Tally
from driver.door.wires import Reading, Route, Usage
from driver.log import Log


class CallEnd(Enum):
    """How a call ended for the program."""

    ANSWERED = "answered"
    REFUSED = "refused"
    BROKEN_OFF = "broken_off"
    ABANDONED = "abandoned"


@dataclass
class Call:
    """What is known of one call. Moments and seconds are of the driver's clock.

    Until something else is known, the program is taken to have gone away.
    """

    route: Route
    arrived: float
    queued: bool = False
    accepted: float | None = None
    first_content: float | None = None
    end: CallEnd = CallEnd.ABANDONED
    status: int | None = None
    code: str | None = None
    reading: Reading | None = None

    @property
    def usage(self) -> Usage | None:
        return None if self.reading is None else self.reading.usage

    def answered(self) -> None:
        self.end = CallEnd.ANSWERED

    def refused(self, status: int, code: str) -> None:
        self.end, self.status, self.code = CallEnd.REFUSED, status, code

    def broken_off(self, code: str) -> None:
        self.end, self.code = CallEnd.BROKEN_OFF, code

    def settle(self, tally: Tally, now: float) -> None:
        """Add this call to the run's counts; once, when it has ended."""
        tally.calls += 1
        if self.end is CallEnd.ANSWERED:
            tally.answered += 1
        elif self.end is CallEnd.REFUSED:
            tally.refuse(self.code or "")
        elif self.end is CallEnd.BROKEN_OFF:
            tally.broken_off += 1
        else:
            tally.abandoned += 1
        if self.queued:
            tally.wait((now if self.accepted is None else self.accepted) - self.arrived)
        if self.reading is not None:
            tally.spend(self.usage)
        if self.accepted is not None and self.first_content is not None:
            tally.first_content(self.first_content - self.accepted)

    def log_end(self, log: Log) -> None:
        """Tell what the program was told instead of a whole answer."""
        if self.end is CallEnd.REFUSED:
            log.warning("model.call.refused", path=self.route.path, status=self.status, code=self.code)
        elif self.end is CallEnd.BROKEN_OFF:
            log.warning("model.call.broken", path=self.route.path, status=self.status, code=self.code)
        elif self.end is CallEnd.ABANDONED:
            log.info("model.call.abandoned", path=self.route.path)
