"""Command-line agents as the measuring program: one run of a CLI for each session (docs/agents.md)."""
