"""pi (npm: @mariozechner/pi-coding-agent): its own pages on models and settings and its `--help`, version 0.73.1."""

import json
from collections.abc import Mapping
from typing import Any, Final

from kinds.programs.agents.agent import KEY_VARIABLE, Agent, Launch, Place, count, inside
from kinds.programs.wires import Usage

_APIS: Final = {"chat": "openai-completions", "responses": "openai-responses", "messages": "anthropic-messages"}
_SETTINGS: Final = {"enableInstallTelemetry": False, "quietStartup": True, "enableSkillCommands": False}


def launch(place: Place) -> Launch:
    """A session without anything that the place it runs in could bring: extensions, skills, prompts, AGENTS.md."""
    # The Messages client adds /v1 itself.
    base = place.door if place.wire == "messages" else f"{place.door}/v1"
    model = {"id": place.model, "contextWindow": place.context_tokens}
    provider = {"baseUrl": base, "api": _APIS[place.wire], "apiKey": KEY_VARIABLE, "models": [model]}
    return Launch(
        (
            *("--print", "--mode", "json", "--no-session", "--offline"),
            *("--no-extensions", "--no-skills", "--no-prompt-templates", "--no-themes", "--no-context-files"),
            *("--tools", "read,bash,grep,find,ls", "--provider", "door", "--model", place.model),
        ),
        {
            KEY_VARIABLE: place.key,
            "PI_CODING_AGENT_DIR": str(place.home / ".pi/agent"),
            "PI_OFFLINE": "1",
            "PI_SKIP_VERSION_CHECK": "1",
            "PI_TELEMETRY": "0",
        },
        {
            ".pi/agent/models.json": json.dumps({"providers": {"door": provider}}),
            ".pi/agent/settings.json": json.dumps(_SETTINGS),
        },
    )


def usage(event: Mapping[str, Any]) -> Usage | None:
    """A `message_end` of the assistant, unless the call failed. `input` leaves out what came from the cache."""
    message = event.get("message")
    if event.get("type") != "message_end" or inside(message, "role") != "assistant":
        return None
    if inside(message, "stopReason") in ("error", "aborted"):
        return None
    cached = count(message, "usage", "cacheRead")
    told = count(message, "usage", "input") + count(message, "usage", "cacheWrite") + cached
    return Usage(told, count(message, "usage", "output"), cached)


PI: Final = Agent("pi", ("chat", "responses", "messages"), 256 * 1024 * 1024, launch, usage)
