"""Codex CLI (npm: @openai/codex): its `exec --help` and `features list`, version 0.171.0."""

import json
from collections.abc import Mapping
from typing import Any, Final

from kinds.programs.agents.agent import KEY_VARIABLE, Agent, Launch, Place, count, inside
from kinds.programs.wires import Usage

_FEATURES_OFF: Final = ("apps", "goals", "hooks", "image_generation", "multi_agent", "plugins", "remote_plugin")
_SAID: Final = ("agent_message", "command_execution", "reasoning")


def launch(place: Place) -> Launch:
    """A session with the configuration of its home alone, without approvals and without a sandbox of its own."""
    off = [word for feature in _FEATURES_OFF for word in ("--disable", feature)]
    return Launch(
        (
            *("exec", "--json", "--ephemeral", "--skip-git-repo-check", "--ignore-rules", "--color", "never"),
            *("--dangerously-bypass-approvals-and-sandbox", *off, "-"),
        ),
        {KEY_VARIABLE: place.key, "CODEX_HOME": str(place.home / ".codex")},
        {".codex/config.toml": _configuration(place)},
    )


def _configuration(place: Place) -> str:
    workspace = json.dumps(str(place.workspace))
    # TOML's basic strings are written as JSON's are.
    return f"""\
model = {json.dumps(place.model)}
model_provider = "door"
model_context_window = {place.context_tokens}
check_for_update_on_startup = false
project_doc_max_bytes = 0
project_root_markers = []
allow_login_shell = false
web_search = "disabled"

[analytics]
enabled = false

[feedback]
enabled = false

[history]
persistence = "none"

[otel]
exporter = "none"

[shell_environment_policy]
inherit = "all"

[projects.{workspace}]
trust_level = "untrusted"

[model_providers.door]
name = "door"
base_url = {json.dumps(place.door + "/v1")}
env_key = "{KEY_VARIABLE}"
wire_api = "responses"
supports_websockets = false
requires_openai_auth = false
"""


def usage(event: Mapping[str, Any]) -> Usage | None:
    """The `turn.completed` at the end of a session tells of all its calls together."""
    if event.get("type") != "turn.completed":
        return None
    return Usage(
        count(event, "usage", "input_tokens"),
        count(event, "usage", "output_tokens"),
        count(event, "usage", "cached_input_tokens"),
        count(event, "usage", "reasoning_output_tokens"),
    )


def answered(event: Mapping[str, Any]) -> bool:
    """Something that the model said or had done."""
    return event.get("type") == "item.completed" and inside(event, "item", "type") in _SAID


CODEX: Final = Agent("codex", ("responses",), 320 * 1024 * 1024, launch, usage, answered)
