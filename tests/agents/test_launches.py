"""How each CLI is started: pointed at the door and at nothing else, with what could speak for others switched off."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kinds.programs.agents.agent import Agent, Place
from kinds.programs.agents.known import AGENTS
from kinds.programs.wires import Usage

KEY = "the-key-of-the-door"
EACH = [pytest.param(agent, wire, id=f"{name}-{wire}") for name, agent in AGENTS.items() for wire in agent.wires]

OTHER_LINES: list[dict[str, Any]] = [{}, {"type": 5}, {"type": "result"}, {"message": []}]


def place(wire: str, model: str = 'a "model"\n\\x') -> Place:
    return Place(Path('/work "space"'), Path("/home/of/session"), "http://127.0.0.1:4711", KEY, model, wire, 50_000)


@pytest.mark.parametrize(("agent", "wire"), EACH)
def test_the_key_stands_in_the_environment_alone(agent: Agent, wire: str) -> None:
    """No argument and no file holds the door's key: arguments can be read by others, and files stay."""
    launch = agent.launch(place(wire))
    assert KEY in launch.environment.values()
    assert not any(KEY in text for text in (*launch.arguments, *launch.files.values()))


@pytest.mark.parametrize(("agent", "wire"), EACH)
def test_the_model_and_the_door(agent: Agent, wire: str) -> None:
    """Each is told the run's model, however it is spelled, and the door as the only address."""
    launch = agent.launch(place(wire))
    said = [*launch.arguments, *launch.environment.values(), *_strings(launch.files)]
    assert any('a "model"\n\\x' in text for text in said)
    addresses = {text for text in said if "://" in text}
    assert addresses <= {"http://127.0.0.1:4711", "http://127.0.0.1:4711/v1"}
    assert addresses


@pytest.mark.parametrize(("agent", "wire"), EACH)
def test_files_stay_in_the_home(agent: Agent, wire: str) -> None:
    """A CLI's configuration is written below its home and nowhere else."""
    for name in agent.launch(place(wire)).files:
        assert not Path(name).is_absolute()
        assert ".." not in Path(name).parts


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("claude", ["--bare", "--strict-mcp-config", "--dangerously-skip-permissions", "--no-session-persistence"]),
        ("codex", ["--dangerously-bypass-approvals-and-sandbox", "--ephemeral", "--ignore-rules"]),
        ("opencode", ["--pure", "--auto"]),
        ("pi", ["--offline", "--no-extensions", "--no-skills", "--no-context-files", "--no-session"]),
    ],
)
def test_switched_off(name: str, arguments: list[str]) -> None:
    """What asks a person, confines a second time, keeps a history or takes a project's word is off."""
    agent = AGENTS[name]
    given = agent.launch(place(agent.wires[0])).arguments
    assert [word for word in arguments if word not in given] == []


@pytest.mark.parametrize(
    ("name", "event", "usage"),
    [
        (
            "pi",
            {
                "type": "message_end",
                "message": {
                    "role": "assistant",
                    "stopReason": "toolUse",
                    "usage": {"input": 5, "output": 7, "cacheRead": 3, "cacheWrite": 2},
                },
            },
            Usage(10, 7, 3),
        ),
        ("pi", {"type": "message_end", "message": {"role": "assistant", "stopReason": "error"}}, None),
        ("pi", {"type": "message_end", "message": {"role": "user"}}, None),
        (
            "claude",
            {"type": "result", "usage": {"input_tokens": 5, "cache_read_input_tokens": 3, "output_tokens": 7}},
            Usage(8, 7, 3),
        ),
        ("claude", {"type": "result", "is_error": True, "usage": {"input_tokens": 0, "output_tokens": 0}}, None),
        (
            "codex",
            {
                "type": "turn.completed",
                "usage": {
                    "input_tokens": 5,
                    "cached_input_tokens": 3,
                    "output_tokens": 7,
                    "reasoning_output_tokens": 1,
                },
            },
            Usage(5, 7, 3, 1),
        ),
        (
            "opencode",
            {
                "type": "step_finish",
                "part": {"tokens": {"input": 5, "output": 7, "reasoning": 1, "cache": {"read": 3, "write": 2}}},
            },
            Usage(10, 8, 3, 1),
        ),
        ("codex", {"type": "turn.completed", "usage": {"input_tokens": "many", "output_tokens": -1}}, Usage()),
        *((name, event, None) for name in AGENTS for event in OTHER_LINES),
    ],
)
def test_usage(name: str, event: dict[str, Any], usage: Usage | None) -> None:
    """The tokens are read where the CLI tells them, and other lines tell none."""
    assert AGENTS[name].usage(event) == usage


def _strings(files: Any) -> list[str]:
    """Every text in the configuration files, keys too."""
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict):
            for key, inner in value.items():
                walk(key)
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    for name, text in files.items():
        if name.endswith(".toml"):
            walk(tomllib.loads(text))
        elif name.endswith(".json"):
            walk(json.loads(text))
    return found
