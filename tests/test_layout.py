"""The trust boundary and the order of the rooms, held by reading every import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# A module may import from the rows above its own, and from its own package. The stub is below them all.
ROWS = [
    {"errors", "exits", "secrets", "values", "clock", "layout"},
    {"log", "handover", "hardening"},
    {"settings"},
    {"probe", "http1"},
    {"isolation", "gateway"},
    {"kind"},
    {"workspace", "process", "door", "lease", "stop", "work"},
    {"result", "ending", "registry"},
    {"held", "front"},
    {"teller"},
    {"holder"},
    {"holding"},
    {"loading", "loop"},
    {"start", "check"},
    {"__main__"},
    {"stub"},
]
ROW_OF = {room: number for number, row in enumerate(ROWS) for room in row}

# What a kind may know of the driver: nothing that can renew, end or reach the gateway.
KINDS_MAY_IMPORT = {
    "driver.errors",
    "driver.exits",
    "driver.gateway.wire",
    "driver.kind",
    "driver.layout",
    "driver.log",
}
PROGRAMS_MAY_IMPORT = {"driver.exits"}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(source: Path) -> set[str]:
    """The project's own modules that a source imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}: a relative import"
            module = node.module or ""
            found |= {
                f"{module}.{alias.name}" if is_module(f"{module}.{alias.name}") else module for alias in node.names
            }
    return {name for name in found if name.split(".")[0] in ("driver", "kinds")}


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def test_the_keeper_is_a_program() -> None:
    """What runs in a program's session, with its rights, is started without a path to anything but Python's own."""
    assert imported(ROOT / "driver/process/keeper.py") == set()
    tree = ast.parse((ROOT / "driver/process/keeper.py").read_text("utf-8"))
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert modules <= sys.stdlib_module_names
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


def test_every_room_has_a_row() -> None:
    """A new room has to say where it stands."""
    rooms = {path.relative_to(ROOT / "driver").parts[0].removesuffix(".py") for path in sources("driver")}
    assert rooms - {"__init__"} == ROW_OF.keys()


@pytest.mark.parametrize("source", sources("driver"), ids=lambda path: str(path.relative_to(ROOT)))
def test_driver_imports_point_up(source: Path) -> None:
    """Inside the driver a room imports only rooms of rows above it, and never a kind."""
    own = source.relative_to(ROOT / "driver").parts[0].removesuffix(".py")
    if own == "__init__":
        assert not imported(source)
        return
    for module in imported(source):
        other = room(module)
        assert module.startswith("driver"), f"{source} imports {module}"
        assert other in (own, "__init__") or ROW_OF[other] < ROW_OF[own], f"{source} imports {module}"


@pytest.mark.parametrize("source", sources("kinds"), ids=lambda path: str(path.relative_to(ROOT)))
def test_kinds_know_little_and_programs_less(source: Path) -> None:
    """A kind cannot reach the gateway, and a program cannot reach anything that can hold the token."""
    in_program = "programs" in source.relative_to(ROOT).parts
    allowed = PROGRAMS_MAY_IMPORT if in_program else KINDS_MAY_IMPORT
    prefix = "kinds.programs" if in_program else "kinds"
    foreign = {module for module in imported(source) if not module.startswith(prefix)}
    assert foreign <= allowed


@pytest.mark.parametrize("program", ["measure", "measurement", "compose", "composition", "digest", "conversing"])
def test_a_program_loads_nothing_of_the_driver(program: str) -> None:
    """What the imports say is so at run time too: a loaded program holds exit codes only."""
    loading = f"import sys, kinds.programs.{program}"
    script = f"{loading}; print(sorted(m for m in sys.modules if m.startswith('driver')))"
    loaded = subprocess.run([sys.executable, "-I", "-c", script], check=True, capture_output=True, text=True).stdout
    assert loaded.strip() in ("['driver', 'driver.exits']", "[]")
