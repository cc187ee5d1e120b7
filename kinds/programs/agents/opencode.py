"""OpenCode (npm: opencode-ai): its `run --help` and configuration schema, version 1.18.33."""

import json
from collections.abc import Mapping
from typing import Any, Final

from kinds.programs.agents.agent import KEY_VARIABLE, Agent, Launch, Place, count
from kinds.programs.wires import Usage

_PACKAGES: Final = {"chat": "@ai-sdk/openai-compatible", "responses": "@ai-sdk/openai", "messages": "@ai-sdk/anthropic"}
_OFF: Final = (
    "OPENCODE_DISABLE_AUTOUPDATE",
    "OPENCODE_DISABLE_CLAUDE_CODE",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS",
    "OPENCODE_DISABLE_EXTERNAL_SKILLS",
    "OPENCODE_DISABLE_LSP_DOWNLOAD",
    "OPENCODE_DISABLE_MODELS_FETCH",
    "OPENCODE_DISABLE_PROJECT_CONFIG",
    "OPENCODE_DISABLE_SHARE",
)
_TOOLS_OFF: Final = ("edit", "write", "patch", "webfetch", "websearch", "task", "todowrite", "skill", "question")
_HOME: Final = ".config/opencode"
_HERE: Final = "here"
_PLUGINS: Final = "@opencode-ai/plugin"
_OUTPUT_TOKENS: Final = 16_384


def launch(place: Place) -> Launch:
    """A session with the configuration of its home alone, which allows every command: nobody could be asked."""
    return Launch(
        ("run", "--pure", "--format", "json", "--auto", "--title", "review", "--model", f"door/{place.model}"),
        {
            KEY_VARIABLE: place.key,
            "XDG_CONFIG_HOME": str(place.home / ".config"),
            "XDG_DATA_HOME": str(place.home / ".local/share"),
            "XDG_STATE_HOME": str(place.home / ".local/state"),
            "XDG_CACHE_HOME": str(place.home / ".cache"),
            **dict.fromkeys(_OFF, "true"),
        },
        {
            f"{_HOME}/opencode.json": json.dumps(_configuration(place)),
            # It would fetch this package for its plugins from the registry, unless it takes it for installed.
            f"{_HOME}/node_modules/.keep": "",
            f"{_HOME}/package-lock.json": json.dumps({"packages": {"": {"dependencies": {_PLUGINS: "*"}}}}),
            # It looks for plugins from where it works up to the root of that repository, whatever is switched off.
            **dict.fromkeys((f"{_HERE}/.git/{name}/.keep" for name in ("objects", "refs")), ""),
            f"{_HERE}/.git/HEAD": "ref: refs/heads/main\n",
        },
        _HERE,
    )


def _configuration(place: Place) -> dict[str, Any]:
    limit = {"context": place.context_tokens, "output": min(_OUTPUT_TOKENS, place.context_tokens)}
    provider = {
        "npm": _PACKAGES[place.wire],
        "options": {"baseURL": f"{place.door}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}"},
        "models": {place.model: {"name": place.model, "limit": limit}},
    }
    return {
        "provider": {"door": provider},
        "enabled_providers": ["door"],
        "model": f"door/{place.model}",
        "small_model": f"door/{place.model}",
        "share": "disabled",
        "autoupdate": False,
        "snapshot": False,
        "lsp": False,
        "formatter": False,
        "instructions": [],
        "plugin": [],
        "mcp": {},
        "permission": {"*": "allow"},
        "tools": dict.fromkeys(_TOOLS_OFF, False),
    }


def usage(event: Mapping[str, Any]) -> Usage | None:
    """A `step_finish`: one answered call. Its `input` leaves out what came from the cache."""
    if event.get("type") != "step_finish":
        return None
    cached = count(event, "part", "tokens", "cache", "read")
    told = count(event, "part", "tokens", "input") + count(event, "part", "tokens", "cache", "write") + cached
    thought = count(event, "part", "tokens", "reasoning")
    return Usage(told, count(event, "part", "tokens", "output") + thought, cached, thought)


OPENCODE: Final = Agent("opencode", ("chat", "responses", "messages"), 1024 * 1024 * 1024, launch, usage)
