"""The conversation in which the feedback is composed."""

from collections.abc import Callable
from typing import Any, Final

from kinds.programs import compose_brief, progress
from kinds.programs.feedback import INLINE, SUMMARY, Sheet, Unit, UnitRefused
from kinds.programs.repair import NotUnderstood, items, loads
from kinds.programs.session_log import SessionLog
from kinds.programs.text import one_line
from kinds.programs.wires import Tool, ToolCall

_ITEMS: Final = 50
_THE_SUMMARY: Final = "the summary"

FEEDBACK: Final = Tool(
    "report_feedback",
    "Report units of feedback. Each is taken or refused on its own.",
    {
        "type": "object",
        "properties": {
            "units": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "observationIds": {"type": "array", "items": {"type": "string"}},
                        "body": {"type": "string", "description": "what the author reads; Markdown"},
                        "placement": {
                            "type": "object",
                            "properties": {
                                "kind": {"type": "string", "enum": [INLINE, SUMMARY]},
                                "path": {"type": "string", "description": f"with {INLINE}: a changed file"},
                                "line": {"type": "integer", "description": f"with {INLINE}: a line of the change"},
                            },
                            "required": ["kind"],
                        },
                    },
                    "required": ["observationIds", "body", "placement"],
                },
            }
        },
        "required": ["units"],
    },
)
SUMMARIZE: Final = Tool(
    "report_summary",
    "Report the summary of the feedback. One that is reported again takes the place of the first.",
    {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)


class Composing:
    """The part of the composing program in its conversation (dialogue.Part). The sheet holds what was reported.

    `changed` is called after each report that changed it.
    """

    def __init__(self, name: str, sheet: Sheet, log: SessionLog, changed: Callable[[], None]) -> None:
        self._name = name
        self._sheet = sheet
        self._log = log
        self._changed = changed

    def left(self) -> list[str]:
        """Every observation that needs a unit and has none, and the summary."""
        missing = [one.id for one in self._sheet.uncovered(needed=True)]
        return [*missing, _THE_SUMMARY] if self._sheet.summary is None else missing

    def reminder(self, left: list[str]) -> str:
        """See dialogue.Part."""
        return compose_brief.reminder(left)

    def so_far(self) -> str:
        """What a model is told again whose older results were left out."""
        units = len(self._sheet.units)
        return f"{units} units were taken so far. Still open: {', '.join(self.left()) or 'nothing'}."

    async def take(self, call: ToolCall) -> str | None:
        """Take what `report_feedback` or `report_summary` brings (dialogue.Part)."""
        try:
            if call.name == FEEDBACK.name:
                units = items(call.arguments, "units", _ITEMS)
                replies = [self._reply(number, item) for number, item in enumerate(units, 1)]
            elif call.name == SUMMARIZE.name:
                replies = [self._summary(call.arguments)]
            else:
                return None
        except (UnitRefused, NotUnderstood) as error:
            self._refused(call.name, str(error))
            return f"refused: {error}"
        self._changed()
        return "\n".join([*replies, f"Still open: {', '.join(self.left()) or 'nothing'}."])

    def _reply(self, number: int, item: Any) -> str:
        try:
            unit = self._sheet.report(item)
        except UnitRefused as error:
            self._refused(f"unit {number}", str(error))
            return f"Unit {number}: refused: {error}"
        progress.say(f"[{self._name}] took a unit {_placed(unit)}: {', '.join(unit.observations)}")
        return f"Unit {number}: taken."

    def _summary(self, arguments: str) -> str:
        given = loads(arguments, lambda value: isinstance(value, dict) and "text" in value)
        self._sheet.summarize(given["text"])
        progress.say(f"[{self._name}] took the summary: {one_line(self._sheet.summary or '', 100)}")
        return "The summary is taken."

    def _refused(self, what: str, reason: str) -> None:
        self._log.refused(f"{what}: {reason}")
        progress.say(f"[{self._name}] refused {what}: {reason}")


def _placed(unit: Unit) -> str:
    return "in the summary" if unit.path is None else f"at {unit.path}:{unit.line}"
