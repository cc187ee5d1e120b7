"""The rule `answer`: reads a captured fact, then answers with the first line of each that fits, citing those.

The brief names each fact as `id` KIND time, with its first line behind `| ` below, and says how long the answer
may be. So the same facts get the same answer.
"""

import re
from typing import Any, Final

from driver.stub.model.conversation import Conversation

_FACT: Final = re.compile(r"^(?:`([^`\n]+)`|\"([^\"\n]+)\") (?:FEEDBACK|PROFILE_CHANGE) .*\n\| (.*)$", re.MULTILINE)
_LIMIT: Final = re.compile(r"at most (\d+) characters")
_NOTHING: Final = "Nothing was captured that would answer this."


def answer(conversation: Conversation) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """The text and the tool calls of this turn."""
    facts = [(plain or odd, line) for plain, odd, line in _FACT.findall(conversation.brief)]
    if conversation.turn == 0 and facts and "fact" in conversation.tools:
        return "I read the facts first.", [("fact", {"id": facts[0][0]})]
    if conversation.turn > bool(facts) or "answer" not in conversation.tools:
        return "The answer is given.", []
    limit = _LIMIT.search(conversation.brief)
    return "", [("answer", _answer(facts, int(limit[1]) if limit else 0))]


def _answer(facts: list[tuple[str, str]], limit: int) -> dict[str, Any]:
    text = ""
    cited: list[str] = []
    for id, line in facts:
        longer = f"{text} {line}".strip()
        if len(longer) <= limit:
            text = longer
            cited.append(id)
    return {"text": text or _NOTHING[:limit], "factIds": cited}
