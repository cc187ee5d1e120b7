"""Claude Code (npm: @anthropic-ai/claude-code): its `--help` and settings documentation, version 2.1.197."""

from collections.abc import Mapping
from typing import Any, Final

from kinds.programs.agents.agent import Agent, Launch, Place, count, inside
from kinds.programs.wires import Usage

_OFF: Final = (
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "DISABLE_TELEMETRY",
    "DISABLE_ERROR_REPORTING",
    "DISABLE_AUTOUPDATER",
    "DISABLE_BUG_COMMAND",
    "DISABLE_GROWTHBOOK",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS",
    "CLAUDE_CODE_DISABLE_CLAUDE_MDS",
    "CLAUDE_CODE_DISABLE_CRON",
)
# A list of hosts to ask, and of settings to load, has no entry.
_NOTHING: Final = ""


def launch(place: Place) -> Launch:
    """A session without settings, hooks, plugins, skills, CLAUDE.md and MCP servers of anybody."""
    return Launch(
        (
            *("--print", "--bare", "--output-format", "stream-json", "--verbose", "--no-session-persistence"),
            *("--setting-sources", _NOTHING, "--strict-mcp-config", "--disable-slash-commands", "--no-chrome"),
            *("--tools", "Bash,Read,Grep,Glob", "--dangerously-skip-permissions", "--model", place.model),
        ),
        {
            "ANTHROPIC_BASE_URL": place.door,
            "ANTHROPIC_API_KEY": place.key,
            # Whatever it does beside the session (titles, summaries) has the one model that the door lets through.
            "ANTHROPIC_MODEL": place.model,
            "ANTHROPIC_SMALL_FAST_MODEL": place.model,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": place.model,
            "CLAUDE_CONFIG_DIR": str(place.home / ".claude"),
            # It asks nobody only where it is told that it is confined; as root it would not start else.
            "IS_SANDBOX": "1",
            **dict.fromkeys(_OFF, "1"),
        },
    )


def usage(event: Mapping[str, Any]) -> Usage | None:
    """The `result` at the end of a session tells of all its calls together."""
    if event.get("type") != "result" or not inside(event, "usage", "output_tokens"):
        return None
    cached = count(event, "usage", "cache_read_input_tokens")
    told = count(event, "usage", "input_tokens") + count(event, "usage", "cache_creation_input_tokens") + cached
    return Usage(told, count(event, "usage", "output_tokens"), cached)


def answered(event: Mapping[str, Any]) -> bool:
    """Something that the model said; what the CLI says in its place has a model of its own."""
    return event.get("type") == "assistant" and inside(event, "message", "model") != "<synthetic>"


CLAUDE: Final = Agent("claude", ("messages",), 384 * 1024 * 1024, launch, usage, answered)
