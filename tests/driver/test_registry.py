"""Which of the installed kinds can be used, and what is said of one that cannot."""

import json
import threading
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import anyio
import pytest

from driver.errors import UnknownKind
from driver.log import Log, render_json
from driver.registry import Kinds, installed_kinds
from kinds.review import Review

pytestmark = pytest.mark.anyio

GOOD = "class Kind:\n    async def run(self, held): ...\n"


async def load(kinds: Kinds, seconds: float = 30.0) -> dict[str, str]:
    """The reason why each broken kind is."""
    lines: list[dict[str, Any]] = []
    log = Log(lambda line: lines.append(json.loads(line)), render=render_json, wall=lambda: 0.0)
    await kinds.load(log, seconds=seconds)
    return {line["kind"]: line["reason"] for line in lines}


def kinds_of(**values: str) -> Kinds:
    return Kinds([EntryPoint(name, value, "driver.kinds") for name, value in values.items()])


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that modules are imported from."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


async def test_those_of_the_project() -> None:
    """The project's own kinds are found by their names, and all of them can be used."""
    kinds = installed_kinds()
    assert {"REVIEW", "REVIEW_COMPOSE", "DIGEST", "TURN"} <= set(kinds.names)
    assert await load(kinds) == {}
    assert isinstance(await kinds.make("REVIEW"), Review)


@pytest.mark.parametrize(
    ("value", "source", "reason"),
    [
        ("kind_a", GOOD, "its entry point must be `module:Class`, and is `kind_a`"),
        ("kind_a:", GOOD, "its entry point must be `module:Class`, and is `kind_a:`"),
        ("kind-b:Kind", GOOD, "its entry point must be `module:Class`, and is `kind-b:Kind`"),
        ("kind_c.d:Kind", GOOD, "No module named 'kind_c'"),
        ("kind_e:Other", GOOD, "module 'kind_e' has no attribute 'Other'"),
        ("kind_f:Kind", "1 / 0", "ZeroDivisionError"),
        ("kind_g:Kind", "class", "SyntaxError"),
        ("kind_h:Kind", "raise SystemExit", "cannot be imported (SystemExit)"),
        ("kind_i:Kind", "raise KeyboardInterrupt('stop')", "cannot be imported (KeyboardInterrupt: stop)"),
        ("kind_j:Kind", "Kind = 7", "kind_j:Kind is a int, and must be a class"),
        ("kind_k:Kind", "async def Kind(held): ...", "kind_k:Kind is a function, and must be a class"),
        ("kind_l:Kind", "class Kind:\n    def __init__(self, a): ...", "cannot be made without arguments (TypeError"),
        ("kind_m:Kind", "class Kind:\n    def __init__(self): exit(5)", "cannot be made without arguments (SystemExit"),
        ("kind_n:Kind", "class Kind: ...", "kind_n:Kind has no `async def run(self, held)`"),
        ("kind_o:Kind", "class Kind:\n    def run(self, held): ...", "has no `async def run(self, held)`"),
        ("kind_p:Kind", "class Kind:\n    async def run(self): ...", "kind_p:Kind.run must take one argument"),
        ("kind_q:Kind", "class Kind:\n    async def run(self, a, b): ...", "kind_q:Kind.run must take one argument"),
    ],
)
async def test_broken(modules: Path, value: str, source: str, reason: str) -> None:
    """Each way to be broken is told with its reason; the kind is not offered any more, and the other one works."""
    (modules / f"{value.partition(':')[0].replace('kind_c.d', 'none')}.py").write_text(source)
    (modules / "kind_good.py").write_text(GOOD)
    kinds = kinds_of(ODD=value, GOOD="kind_good:Kind")
    told = await load(kinds)
    assert list(told) == ["ODD"]
    assert reason in told["ODD"]
    assert kinds.names == ["GOOD"]
    with pytest.raises(UnknownKind, match="the runner that is installed for kind ODD cannot be used: "):
        await kinds.make("ODD")
    assert type(await kinds.make("GOOD")).__name__ == "Kind"


async def test_registered_twice(modules: Path) -> None:
    """Of two different ones of one name neither is used, and it is not offered from the start."""
    points = [EntryPoint("TWICE", value, "driver.kinds") for value in ("kinds.review:Review", "other:Kind")]
    kinds = Kinds(points)
    assert kinds.names == []
    assert await load(kinds) == {
        "TWICE": "it is registered twice: kinds.review:Review by unknown, other:Kind by unknown"
    }


async def test_the_same_twice() -> None:
    """A distribution that is found in two places registers the same kind, which is one."""
    kinds = Kinds([EntryPoint("REVIEW", "kinds.review:Review", "driver.kinds")] * 2)
    assert await load(kinds) == {}
    assert kinds.names == ["REVIEW"]


async def test_unknown() -> None:
    """Nothing is known of a kind that nobody has registered."""
    with pytest.raises(UnknownKind, match="no runner is installed for kind MYSTERY"):
        await kinds_of().make("MYSTERY")


async def test_a_run_waits_until_its_kind_was_looked_at(modules: Path) -> None:
    """A run that the first pull brings waits for its kind; before that the kind counts as one that works."""
    (modules / "kind_soon.py").write_text(GOOD)
    kinds = kinds_of(SOON="kind_soon:Kind")
    assert kinds.names == ["SOON"]
    made: list[object] = []
    async with anyio.create_task_group() as tasks:

        async def make() -> None:
            made.append(await kinds.make("SOON"))

        tasks.start_soon(make)
        await anyio.wait_all_tasks_blocked()
        assert made == []
        assert await load(kinds) == {}
    assert len(made) == 1


async def test_import_that_hangs(modules: Path) -> None:
    """A kind whose import does not end is broken after a while, and those behind it are loaded."""
    (modules / "kind_hangs.py").write_text("import builtins; builtins.go_on.wait()")
    (modules / "kind_next.py").write_text(GOOD)
    kinds = kinds_of(HANGS="kind_hangs:Kind", NEXT="kind_next:Kind")
    go_on = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.go_on", go_on, raising=False)
        told = await load(kinds, seconds=1.0)
        go_on.set()
    assert told == {"HANGS": "kind_hangs:Kind was not imported within 1 s"}
    assert kinds.names == ["NEXT"]
