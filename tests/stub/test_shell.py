"""The scripted model reports through the tool that runs commands, whatever the client calls it."""

import json
from typing import Any

import pytest

from driver.stub.model import chat, messages, responses
from driver.stub.model.report import report
from tests.stub.test_model import BRIEF

RULES = """\
    '/a place/report-observation' <<'END'
    {"observations": []}
    END

"""


def schema(required: list[str], **properties: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": required,
    }


READ = {"name": "read_command_history", "parameters": schema([], path="string")}
TOOLS = [
    pytest.param(
        {"name": "bash", "parameters": schema(["command", "description"], command="string", description="string")},
        {"command": "RUN", "description": "Report what was found"},
        id="with-a-description",
    ),
    pytest.param(
        {"name": "exec_command", "parameters": schema(["cmd"], cmd="string", workdir="string")},
        {"cmd": "RUN"},
        id="cmd",
    ),
    pytest.param(
        {"name": "shell", "parameters": schema(["command"], command="array")},
        {"command": ["bash", "-c", "RUN"]},
        id="list-of-words",
    ),
]


@pytest.mark.parametrize(("tool", "arguments"), TOOLS)
@pytest.mark.parametrize("wire", ["chat", "messages", "responses"])
def test_one_command_for_each_practice(wire: str, tool: dict[str, Any], arguments: dict[str, Any]) -> None:
    """The change is read first, then each practice is reported by a call of its own, then the model stops."""
    turns = [report(_conversation(wire, tool, answers)) for answers in range(3)]
    assert [len(calls) for _, calls in turns] == [1, 4, 0]
    name, given = turns[1][1][0]
    command = _command(given)
    assert (name, json.loads(json.dumps(given).replace(json.dumps(command)[1:-1], "RUN"))) == (tool["name"], arguments)
    first, reported, last = command.split("\n")
    assert (first, last) == ("'/a place/report-observation' <<'END'", "END")
    (observation,) = json.loads(reported)["observations"]
    assert (observation["practiceSlug"], observation["outcome"]) == ("errors-are-specific", "NOT_MET")


def test_nothing_to_run_commands_with() -> None:
    """A client that offers no such tool, or whose brief tells no command, gets no call."""
    assert report(_conversation("chat", READ, 0))[1] == []
    tool = {"name": "bash", "parameters": schema(["command"], command="string")}
    assert report(_conversation("chat", tool, 0, rules=""))[1] == []


def _command(given: dict[str, Any]) -> str:
    value = given.get("command", given.get("cmd"))
    return str(value[-1] if isinstance(value, list) else value)


def _conversation(wire: str, tool: dict[str, Any], answers: int, rules: str = RULES) -> Any:
    """A request as that wire has it, after so many answers. What the user says comes in two messages."""
    told = [{"role": "user", "content": "surroundings"}, {"role": "user", "content": rules + BRIEF}]
    said = [{"role": "assistant", "content": "so"}, {"role": "user", "content": "on"}] * answers
    if wire == "chat":
        return chat.read({"model": "m", "messages": told + said, "tools": [{"type": "function", "function": tool}]})
    if wire == "messages":
        anthropic = {"name": tool["name"], "input_schema": tool["parameters"]}
        return messages.read({"model": "m", "messages": told + said, "tools": [anthropic]})
    return responses.read({"model": "m", "input": told + said, "tools": [{"type": "function", **tool}]})
