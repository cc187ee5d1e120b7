"""What one run did with the model, as `out/driver.json` tells it."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from driver.door.wires import Usage


@dataclass
class Tally:
    """Counts of one run. Seconds are of the driver's clock."""

    calls: int = 0
    answered: int = 0
    refused: int = 0
    broken_off: int = 0
    abandoned: int = 0
    unmeasured: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    waited: int = 0
    waiting_seconds: float = 0.0
    waiting_seconds_longest: float = 0.0
    first_contents: int = 0
    first_content_seconds: float = 0.0
    first_content_seconds_longest: float = 0.0
    refusals: Counter[str] = field(default_factory=Counter)

    def refuse(self, code: str) -> None:
        self.refused += 1
        self.refusals[code] += 1

    def wait(self, seconds: float) -> None:
        self.waited += 1
        self.waiting_seconds += seconds
        self.waiting_seconds_longest = max(self.waiting_seconds_longest, seconds)

    def first_content(self, seconds: float) -> None:
        self.first_contents += 1
        self.first_content_seconds += seconds
        self.first_content_seconds_longest = max(self.first_content_seconds_longest, seconds)

    def spend(self, usage: Usage | None) -> None:
        """Add the tokens of one answer; an answer that did not tell them counts as unmeasured."""
        if usage is None:
            self.unmeasured += 1
            return
        self.input_tokens += usage.input
        self.output_tokens += usage.output

    def statistics(self) -> dict[str, Any]:
        """The counts as a JSON object."""
        return {
            "calls": self.calls,
            "answered": self.answered,
            "refused": self.refused,
            "refusals": dict(sorted(self.refusals.items())),
            "brokenOff": self.broken_off,
            "abandoned": self.abandoned,
            "unmeasured": self.unmeasured,
            "inputTokens": self.input_tokens,
            "outputTokens": self.output_tokens,
            "waited": self.waited,
            "waitingSeconds": round(self.waiting_seconds, 3),
            "waitingSecondsLongest": round(self.waiting_seconds_longest, 3),
            "firstContents": self.first_contents,
            "firstContentSeconds": round(self.first_content_seconds, 3),
            "firstContentSecondsLongest": round(self.first_content_seconds_longest, 3),
        }
