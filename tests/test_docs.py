"""The docs tell the truth: every event, setting and exit code that the code has stands in them, and its figures do."""

import ast
import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from driver.exits import CheckExit, DriverExit, ProgramExit
from driver.gateway import wire
from driver.lease import LeaseState

ROOT = Path(__file__).parents[1]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text("utf-8")
DESIGN = (ROOT / "docs" / "design.md").read_text("utf-8")
EVENT = re.compile(r"[a-z]+(\.[a-z_]+)+")
LOGGING = {"debug", "info", "warning", "error", "write", "tell", "level"}


def events() -> set[str]:
    """The first argument of each call that writes a log line."""
    found = set()
    for source in [*(ROOT / "driver").rglob("*.py"), *(ROOT / "kinds").glob("*.py")]:
        if "stub" in source.parts:
            continue
        for node in ast.walk(ast.parse(source.read_text("utf-8"))):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                function = node.func
                name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
                value = node.args[0].value
                if name in LOGGING and isinstance(value, str) and EVENT.fullmatch(value):
                    found.add(value)
    return found


def table(heading: str) -> set[str]:
    """The first column of the table below a heading, without its backticks."""
    section = OPERATIONS.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return {word for line in section.splitlines() if line.startswith("| ") for word in _names(line.split("|")[1])}


def _names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell) or [cell.strip()]


def test_every_event_is_documented_and_no_other() -> None:
    """The table of events is the list of events."""
    documented = {name for name in table("Log events") if EVENT.fullmatch(name)}
    # Written by the sink itself, which has no log to write to.
    assert documented == events() | {"log.dropped"}


def test_every_setting_is_documented() -> None:
    """Each variable that the driver reads stands in the table of settings."""
    read = set(re.findall(r'"((?:DRIVER|HEPHAESTUS)_[A-Z_]+)"', (ROOT / "driver" / "settings.py").read_text("utf-8")))
    documented = table("Settings")
    documented |= {f"DRIVER_PROGRAM{suffix}" for suffix in documented if suffix.startswith("_")}
    assert read <= documented


def test_every_exit_code_is_documented() -> None:
    """Each table of exit codes holds each code that has a name."""
    assert {str(int(code)) for code in DriverExit} <= table("Exit codes of the driver")
    assert {str(int(code)) for code in CheckExit} <= table("Exit codes of the check")
    assert {str(int(code)) for code in ProgramExit} <= table("Exit codes of a run")


def test_every_refusal_of_the_door_is_documented() -> None:
    """The table of refusals holds each code with its status."""
    refusals = set()
    for source in (ROOT / "driver" / "door").glob("*.py"):
        refusals |= set(re.findall(r'DoorRefusal\(\s*(\d{3}),\s*"([a-z_]+)"', source.read_text("utf-8")))
    section = OPERATIONS.split("\n## What the door refuses\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| ")]
    documented = {
        (status, code)
        for row in rows
        for status in re.findall(r"\d{3}", row[1])
        for code in re.findall(r"`([a-z_]+)`", row[2])
    }
    assert len(refusals) >= 15
    assert refusals <= documented


def test_the_figures_of_a_lease() -> None:
    """The table and the two drawings of a lease show what the code does with one of 60 s and a deadline of 900 s."""
    now = datetime(2026, 11, 29, tzinfo=UTC)
    granted = wire.Lease(now=now, leased_until=now + timedelta(seconds=60), deadline=now + timedelta(seconds=900))
    lease = LeaseState(granted, sent_at=0.0)
    assert lease.work_deadline is not None
    assert lease.deadline is not None
    shown = {
        "the next renewal is due": f"{lease.renewal_at(Drawing(0)):g} to {lease.renewal_at(Drawing(1)):g}",
        "in doubt": f"{lease.doubtful_at:g}",
        "guard": f"{lease.expires_at - lease.doubtful_at:g}",
        "reserve": f"{lease.deadline - lease.work_deadline:g}",
        "work deadline": f"{lease.work_deadline:g}",
    }
    section = DESIGN.split("### One lease, and the end of a run\n", 1)[1].split("\n### ", 1)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| ")]
    assert shown.items() <= {name: seconds for name, _, seconds in rows}.items()
    scales = [line.split() for line in section.splitlines() if re.fullmatch(r"0[ 0-9]+", line)]
    due = [f"{lease.renewal_at(Drawing(share)):g}" for share in (0, 0.5, 1)]
    assert scales == [
        ["0", *due, f"{lease.doubtful_at:g}", f"{lease.expires_at:g}"],
        ["0", f"{lease.work_deadline:g}", f"{lease.deadline:g}"],
    ]


class Drawing(random.Random):
    """Draws that share of each range."""

    def __init__(self, share: float) -> None:
        super().__init__(0)
        self._share = share

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self._share


def test_references_from_the_code_lead_somewhere() -> None:
    """Where a docstring names a page and a heading, both are there."""
    for source in [*(ROOT / "driver").rglob("*.py"), *(ROOT / "kinds").rglob("*.py")]:
        text = " ".join(source.read_text("utf-8").split())
        for page, heading in re.findall(r'docs/([a-z]+\.md)(?:, "([^"]+)")?', text):
            headings = re.findall(r"(?m)^#+ (.+)$", (ROOT / "docs" / page).read_text("utf-8"))
            assert not heading or heading in headings, f"{source.name}: {page}, {heading}"


def test_links_lead_somewhere() -> None:
    """Every relative link in README and docs names a file that is there, and so does every test that is named."""
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"
        for named in re.findall(r"`(tests/[^` ]+)`", page.read_text("utf-8")):
            assert (ROOT / named).exists(), f"{page.name}: {named}"
