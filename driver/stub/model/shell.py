"""The tool with which a client lets a model run commands: each names it and its arguments in its own way."""

import re
from dataclasses import dataclass
from typing import Any, Final

_NAMED: Final = re.compile(r"bash|shell|exec|command|terminal", re.IGNORECASE)
_COMMAND: Final = ("command", "cmd")
_WHY: Final = "Report what was found"


@dataclass(frozen=True)
class Shell:
    """A tool that runs a command. `words` tells that it takes a list of words; `beside` are other texts it needs."""

    name: str
    argument: str
    words: bool
    beside: tuple[str, ...]

    def call(self, command: str) -> tuple[str, dict[str, Any]]:
        """The tool call that runs this command in a shell."""
        value = ["bash", "-c", command] if self.words else command
        return self.name, {self.argument: value, **dict.fromkeys(self.beside, _WHY)}


def shell_of(body: dict[str, Any]) -> Shell | None:
    """The first tool of a request that runs commands, if it offers one."""
    return next((shell for function in functions(body) if (shell := _shell(function))), None)


def functions(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The tools that a request offers, whether the wire nests them in `function` or not."""
    given = body.get("tools")
    tools = [tool for tool in given if isinstance(tool, dict)] if isinstance(given, list) else []
    return [tool["function"] if isinstance(tool.get("function"), dict) else tool for tool in tools]


def _shell(function: dict[str, Any]) -> Shell | None:
    schema = function.get("parameters") or function.get("input_schema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    name = function.get("name")
    if not isinstance(schema, dict) or not isinstance(properties, dict):
        return None
    if not isinstance(name, str) or not _NAMED.search(name):
        return None
    argument = next((known for known in _COMMAND if isinstance(properties.get(known), dict)), None)
    if argument is None:
        return None
    required = schema.get("required")
    needed = [one for one in required if one != argument] if isinstance(required, list) else []
    beside = tuple(one for one in needed if _is_text(properties.get(one)))
    return Shell(name, argument, properties[argument].get("type") == "array", beside)


def _is_text(schema: object) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "string"
