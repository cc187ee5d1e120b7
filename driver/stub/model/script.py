"""Which turn of the script answers a call.

The turn is counted from what the request holds, so a call that is made again gets the same answer.
"""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final, Protocol

from driver.stub.model import chat, messages, responses
from driver.stub.model.answer import answer
from driver.stub.model.compose import compose
from driver.stub.model.conversation import Call, Conversation, Reply
from driver.stub.model.report import report
from driver.stub.scenario import ModelTable, Turn, Usage

_CHARACTERS_PER_TOKEN: Final = 4
_DONE: Final = Turn(text="There is nothing left to say.")


class Wire(Protocol):
    """What each wire module does."""

    def read(self, body: dict[str, Any]) -> Conversation: ...

    def answer(self, reply: Reply) -> dict[str, Any]: ...

    def frames(self, reply: Reply, conversation: Conversation) -> Iterator[bytes]: ...


WIRES: Final[dict[str, Wire]] = {"responses": responses, "chat/completions": chat, "messages": messages}
"""The wire of each path below `/v1/`."""


class Script:
    """The scripted model of a scenario."""

    def __init__(self, table: ModelTable, now: Callable[[], datetime]) -> None:
        self._table = table
        self._now = now

    def turn(self, conversation: Conversation) -> Turn:
        """The turn that answers: past the end of the list a rule goes on, and else the model is done."""
        turns = next((s.turns for s in self._table.session if s.match in conversation.brief), self._table.turns)
        if conversation.turn < len(turns):
            return turns[conversation.turn]
        return turns[-1] if turns and turns[-1].rule else _DONE

    def reply(self, conversation: Conversation, turn: Turn, request_characters: int) -> Reply:
        """What the model says in that turn. Without a `usage` of its own, four characters count as a token."""
        text, calls = _content(conversation, turn)
        written = len(text) + sum(len(arguments) for _, arguments in calls)
        place = f"{conversation.session}{conversation.turn:04d}"
        return Reply(
            id=place,
            model=conversation.model,
            created=int(self._now().timestamp()),
            text=text,
            calls=tuple(Call(f"{place}{n:02d}", name, arguments) for n, (name, arguments) in enumerate(calls)),
            usage=turn.usage or Usage(input=tokens(request_characters), output=tokens(written)),
        )


def tokens(characters: int) -> int:
    """A rough count of tokens, at least one."""
    return max(1, characters // _CHARACTERS_PER_TOKEN)


def models(model: str) -> dict[str, Any]:
    """The answer of `GET /v1/models`: the run's model alone."""
    return {"object": "list", "data": [{"id": model, "object": "model", "created": 0, "owned_by": "stub"}]}


_RULES: Final[dict[str, Callable[[Conversation], tuple[str, list[tuple[str, dict[str, Any]]]]]]] = {
    "answer": answer,
    "compose": compose,
    "report": report,
}


def _content(conversation: Conversation, turn: Turn) -> tuple[str, list[tuple[str, str]]]:
    if turn.rule is not None:
        text, calls = _RULES[turn.rule](conversation)
        return text, [(name, json.dumps(arguments)) for name, arguments in calls]
    return turn.text, [
        (call.name, call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments))
        for call in turn.calls
    ]
