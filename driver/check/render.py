"""The findings as text for people, or as one JSON object for programs."""

import json
from collections.abc import Sequence
from typing import Final

from driver import __version__
from driver.check.finding import Finding, Level, worst

_COLOURS: Final = {Level.OK: "\x1b[32m", Level.WARNING: "\x1b[33m", Level.FAILURE: "\x1b[31m"}
_PLAIN: Final = "\x1b[0m"


def as_text(findings: Sequence[Finding], *, colour: bool) -> str:
    """Aligned lines; what to do stands in a line of its own below, and a summary at the end."""
    area = max(len(finding.area) for finding in findings)
    name = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        level = f"{finding.level.value:<4}"
        level = f"{_COLOURS[finding.level]}{level}{_PLAIN}" if colour else level
        lines.append(f"{level}  {finding.area:<{area}}  {finding.name:<{name}}  {finding.found}")
        if finding.advice:
            lines.append(f"{'':4}  {'':{area}}  {'':{name}}  -> {finding.advice}")
    failures = sum(finding.level is Level.FAILURE for finding in findings)
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    lines.append(f"{failures} failed, {warnings} with a warning; exit {int(worst(findings))}")
    return "\n".join(lines) + "\n"


def as_json(findings: Sequence[Finding]) -> str:
    """`{"version", "exit", "findings": [{"level", "area", "name", "found", "advice"?}]}` on one line."""
    rows = []
    for finding in findings:
        row = {"level": finding.level.value, "area": finding.area, "name": finding.name, "found": finding.found}
        rows.append(row | ({"advice": finding.advice} if finding.advice else {}))
    return json.dumps({"version": __version__, "exit": int(worst(findings)), "findings": rows}) + "\n"
