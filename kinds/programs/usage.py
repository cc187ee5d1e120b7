"""What the model calls of a program came to, by model (`out/usage.json`)."""

from dataclasses import dataclass, field
from typing import Any, Final

from kinds.programs.wires import Usage

SCHEMA_VERSION: Final = 1


@dataclass
class ModelUsage:
    """Figures of one model. Tokens are the provider's; `waited` is seconds between tries."""

    calls: int = 0
    answered: int = 0
    retries: int = 0
    waited: float = 0.0
    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0

    def add(self, usage: Usage) -> None:
        """Count an answered call."""
        self.answered += 1
        self.more(usage)

    def more(self, usage: Usage) -> None:
        """Count tokens of calls that are counted already."""
        self.input += usage.input
        self.output += usage.output
        self.cached += usage.cached
        self.reasoning += usage.reasoning

    def as_json(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "answered": self.answered,
            "retries": self.retries,
            "waitedSeconds": round(self.waited, 3),
            "inputTokens": self.input,
            "outputTokens": self.output,
            "cachedTokens": self.cached,
            "reasoningTokens": self.reasoning,
        }


@dataclass
class UsageLedger:
    """The usage of all sessions. `calls` counts requests sent, tries included."""

    models: dict[str, ModelUsage] = field(default_factory=dict)

    def of(self, model: str) -> ModelUsage:
        """The figures of a model, from zero on its first call."""
        return self.models.setdefault(model, ModelUsage())

    @property
    def answered(self) -> int:
        """Calls that were answered, over all models."""
        return sum(usage.answered for usage in self.models.values())

    def as_json(self) -> dict[str, Any]:
        return {
            "schemaVersion": SCHEMA_VERSION,
            "models": {model: usage.as_json() for model, usage in sorted(self.models.items())},
        }
