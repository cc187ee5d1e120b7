"""What is noted of a session while it runs, for a person and for `out/runner-debug.json`."""

from dataclasses import dataclass, field
from typing import Any, Final

from kinds.programs import progress
from kinds.programs.errors import CallFault
from kinds.programs.observations import Verdict
from kinds.programs.text import one_line
from kinds.programs.wires import Turn, Usage

_NOTED_CHARACTERS: Final = 300
_NOTED: Final = 50
_NOTED_CALLS: Final = 8


@dataclass
class SessionLog:
    """What happened in a session (`out/runner-debug.json`). Of what has no bound, the first ones are noted."""

    name: str
    practices: tuple[str, ...]
    ended: str = "running"
    turns: list[dict[str, Any]] = field(default_factory=list)
    retries: list[dict[str, Any]] = field(default_factory=list)
    retried: int = 0
    waited: float = 0.0
    refusals: list[str] = field(default_factory=list)
    tool_calls: int = 0
    shortened: int = 0
    peak_bytes: int = 0

    def retrying(self, error: CallFault, seconds: float) -> None:
        """A try failed (model.Watcher)."""
        self.retried += 1
        self.waited += seconds
        if len(self.retries) < _NOTED:
            self.retries.append({"reason": one_line(str(error), _NOTED_CHARACTERS), "waitSeconds": round(seconds, 3)})
        progress.say(f"[{self.name}] call failed, next try in {seconds:.1f} s: {error}")

    def answered(self, turn: Turn, seconds: float) -> None:
        """A call was answered."""
        self.turns.append(
            {
                "seconds": round(seconds, 3),
                "inputTokens": turn.usage.input,
                "outputTokens": turn.usage.output,
                "toolCalls": len(turn.calls),
                "calls": [one_line(call.name, 60) for call in turn.calls[:_NOTED_CALLS]],
            }
        )

    def told(self, usage: Usage, seconds: float) -> None:
        """Another program's call was answered: what that program told of it."""
        if len(self.turns) < _NOTED:
            tokens = {"inputTokens": usage.input, "outputTokens": usage.output}
            self.turns.append({"seconds": round(seconds, 3), **tokens})

    def judged(self, verdict: Verdict, item: str) -> None:
        """What was reported is recorded, or refused; `item` names it where it names no practice."""
        if verdict.observation is not None:
            progress.say(f"[{self.name}] recorded {progress.observation_line(verdict.observation)}")
        else:
            refusal = f"{verdict.practice or item}: {verdict.refusal}"
            self.refused(refusal)
            progress.say(f"[{self.name}] refused {refusal}")

    def refused(self, reason: str) -> None:
        """Note why an observation or a tool call was refused."""
        if len(self.refusals) < _NOTED:
            self.refusals.append(one_line(reason, _NOTED_CHARACTERS))

    def as_json(self, *, details: bool = True) -> dict[str, Any]:
        """As JSON; without details only how it ended and its figures."""
        figures = {
            "name": one_line(self.name, _NOTED_CHARACTERS),
            "practices": list(self.practices),
            "ended": self.ended,
            "toolCalls": self.tool_calls,
            "retried": self.retried,
            "waitedSeconds": round(self.waited, 3),
            "shortenedResults": self.shortened,
            "peakTranscriptBytes": self.peak_bytes,
        }
        if not details:
            return figures
        return {
            **figures,
            "turns": list(self.turns),
            "refusals": list(self.refusals),
            "retries": list(self.retries),
        }
