"""The read-only tools: what they show, where they cut, and what they cannot reach."""

import os
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from kinds.programs.confine import Confined
from kinds.programs.errors import ToolRefused
from kinds.programs.tools import Toolkit

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    files = {
        "src/a.py": "import os\n\ndef a():\n    return os\n",
        "src/deep/b.py": "b = 1\n",
        "src/deep/c.txt": "import text\n",
        "binary.bin": "import\0\n",
        ".git/config": "import secrets\n",
        "empty": "",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (tmp_path / "secret.txt").write_text("import the secret\n")
    return root


@pytest.fixture
def tools(root: Path) -> Toolkit:
    return Toolkit.over(Confined(root))


@pytest.mark.parametrize(
    ("name", "arguments", "output"),
    [
        ("read", {"path": "src/a.py"}, "[L1] import os\n[L2] \n[L3] def a():\n[L4]     return os"),
        ("read", {"path": "src/a.py", "start": 3}, "[L3] def a():\n[L4]     return os"),
        ("read", {"path": "src/a.py", "start": 1, "end": 2}, "[L1] import os\n[L2] "),
        ("read", {"path": "src/a.py", "start": 9}, "(the file has 4 lines)"),
        ("read", {"path": "empty"}, "(the file has 0 lines)"),
        ("ls", {}, ".git/\nbinary.bin  8\nempty  0\nsrc/"),
        ("ls", {"path": "src/deep/"}, "b.py  6\nc.txt  12"),
        ("grep", {"pattern": "^import"}, "src/a.py:1: import os\nsrc/deep/c.txt:1: import text\n"),
        ("grep", {"pattern": "import", "path": "src/deep"}, "src/deep/c.txt:1: import text\n"),
        ("grep", {"pattern": "import", "path": "src/a.py"}, "src/a.py:1: import os\n"),
        ("grep", {"pattern": "import", "path": ".git"}, ".git/config:1: import secrets\n"),
        ("grep", {"pattern": "nowhere"}, "(nothing was found)\n"),
        ("find", {"glob": "*.py"}, "src/a.py\nsrc/deep/b.py\n"),
        ("find", {"glob": "src/*.py"}, "src/a.py\n"),
        ("find", {"glob": "**/b.?y"}, "src/deep/b.py\n"),
        ("find", {"glob": "deep/*", "path": "src"}, "src/deep/b.py\nsrc/deep/c.txt\n"),
        ("find", {"glob": "[ab].py"}, "(nothing was found)\n"),
    ],
)
async def test_output(tools: Toolkit, name: str, arguments: dict[str, Any], output: str) -> None:
    """What each tool shows."""
    assert await tools.call(name, arguments) == output


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("read", {"path": "nowhere"}, "nowhere cannot be opened: No such file or directory"),
        ("read", {"path": "src"}, "src is not a regular file"),
        ("read", {"path": "src/a.py/x"}, "src/a.py/x cannot be opened: Not a directory"),
        ("read", {"path": ""}, " is not a regular file"),
        ("read", {}, "`path` must be a text"),
        ("read", {"path": "src/a.py", "start": 0}, "`start` must be a whole number from 1"),
        ("read", {"path": "src/a.py", "end": True}, "`end` must be a whole number from 1"),
        ("read", {"path": "src/\0"}, "that is no path"),
        ("read", {"path": "\ud800"}, r"\ud800 cannot be opened: no valid name"),
        ("read", {"path": "x/" * 300}, "that path has too many parts"),
        ("ls", {"path": "src/a.py"}, "src/a.py cannot be opened: Not a directory"),
        ("ls", {"path": 5}, "`path` must be a text"),
        ("grep", {"pattern": "("}, "the pattern is no Python regular expression"),
        ("grep", {"pattern": ""}, "a pattern has 1 to 1000 characters"),
        ("grep", {"pattern": "x" * 1001}, "a pattern has 1 to 1000 characters"),
        ("grep", {"pattern": "x", "path": "nowhere"}, "nowhere cannot be opened"),
        ("write", {"path": "x"}, "there is no tool write"),
    ],
)
async def test_refusals(tools: Toolkit, name: str, arguments: dict[str, Any], reason: str) -> None:
    """A call that cannot be done is refused with a reason for the model."""
    with pytest.raises(ToolRefused) as refused:
        await tools.call(name, arguments)
    assert str(refused.value).startswith(reason)


@pytest.mark.parametrize("name", ["read", "ls", "grep", "find"])
@pytest.mark.parametrize(
    "path",
    ["../secret.txt", "src/../../secret.txt", "/etc", "file-link", "dir-link", "dir-link/secret.txt", "inside-link"],
)
async def test_nothing_leads_out(root: Path, tools: Toolkit, name: str, path: str) -> None:
    """Absolute paths, `..` and links of every kind are refused, also links that lead back inside."""
    (root / "file-link").symlink_to("../secret.txt")
    (root / "dir-link").symlink_to("..")
    (root / "inside-link").symlink_to("src")
    with pytest.raises(ToolRefused, match=r"outside the workspace|`\.\.` is not followed|links are not followed"):
        await tools.call(name, {"path": path, "pattern": "import", "glob": "*"})


async def test_searches_pass_links_by(root: Path, tools: Toolkit) -> None:
    """A search below the workspace enters no link, and a fifo does not hold it."""
    (root / "dir-link").symlink_to("..")
    (root / "file-link").symlink_to("../secret.txt")
    os.mkfifo(root / "fifo")
    assert "secret" not in await tools.call("grep", {"pattern": "import"})
    assert await tools.call("find", {"glob": "*link*"}) == "(nothing was found)\n"
    assert "fifo  (not a regular file)" in await tools.call("ls", {})
    with pytest.raises(ToolRefused, match="not a regular file"):
        await tools.call("read", {"path": "fifo"})


async def test_the_absolute_path_of_the_workspace_is_inside(root: Path, tools: Toolkit) -> None:
    """A model may name a file by the workspace's own absolute path, but not by one that only begins like it."""
    assert (await tools.call("read", {"path": f"{root}/src/deep/b.py"})) == "[L1] b = 1"
    with pytest.raises(ToolRefused, match="outside the workspace"):
        await tools.call("read", {"path": f"{root}-other/x"})


def test_a_race_cannot_lead_out(root: Path) -> None:
    """While a directory is swapped for a link all the time, a read shows the inside or is refused."""
    (root / "outside").symlink_to("..")
    (root / "swap").mkdir()
    (root / "swap/secret.txt").write_text("inside\n")
    workspace = Confined(root)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            os.rename(root / "swap", root / "held")
            os.rename(root / "outside", root / "swap")
            os.rename(root / "swap", root / "outside")
            os.rename(root / "held", root / "swap")

    thread = threading.Thread(target=swap)
    thread.start()
    seen = set()
    try:
        for _ in range(2000):
            try:
                with workspace.file("swap/secret.txt") as file:
                    seen.add(file.read())
            except ToolRefused:
                seen.add(b"refused")
    finally:
        done.set()
        thread.join()
    assert b"inside\n" in seen
    assert seen <= {b"inside\n", b"refused"}


async def test_long_files_and_lines_are_cut_and_say_so(root: Path, tools: Toolkit) -> None:
    """400 lines, 32 KiB and 2 KiB a line are the bounds; the output tells how to read on."""
    (root / "long").write_text("x\n" * 1000)
    shown = (await tools.call("read", {"path": "long"})).split("\n")
    assert (len(shown), shown[-1]) == (401, "(cut: read on with start=401)")
    shown = (await tools.call("read", {"path": "long", "start": 401, "end": 1000})).split("\n")
    assert (shown[0], shown[-1]) == ("[L401] x", "(cut: read on with start=801)")
    (root / "wide").write_text("x" * 100_000 + "\nshort\n")
    shown = (await tools.call("read", {"path": "wide"})).split("\n")
    assert shown == [f"[L1] {'x' * 2048} (line cut)", "[L2] short"]
    (root / "both").write_text(("x" * 1990 + "\n") * 100)
    assert (await tools.call("read", {"path": "both"})).endswith("(cut: read on with start=17)")


async def test_many_results_are_cut_and_say_so(root: Path, tools: Toolkit) -> None:
    """200 results and 500 entries are the bounds."""
    (root / "many").mkdir()
    for number in range(600):
        (root / f"many/{number:03}").write_text("needle\n")
    found = (await tools.call("grep", {"pattern": "needle"})).splitlines()
    assert (len(found), found[-1]) == (201, "(cut: only the first 200 results are shown; search more narrowly)")
    assert (await tools.call("find", {"glob": "many/*"})).count("\n") == 201
    assert (await tools.call("ls", {"path": "many"})).endswith("(cut: 100 more entries)")


async def test_a_huge_sparse_file_does_not_hold_the_program(root: Path, tools: Toolkit) -> None:
    """A file of a terabyte is refused by read, and passed by in a search, which says so."""
    with open(root / "sparse", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ToolRefused, match="over 67108864 bytes"):
        await tools.call("read", {"path": "sparse"})
    assert "1 files were not searched" in await tools.call("grep", {"pattern": "x", "path": "sparse"})


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("grep", {"pattern": "(x+x+)+y", "path": "evil"}), ("find", {"glob": "*x" * 40 + "y"})],
)
async def test_a_pattern_cannot_hang_the_program(root: Path, name: str, arguments: dict[str, Any]) -> None:
    """A pattern that would match for years is ended in time, and what was found before is shown."""
    (root / "evil").mkdir()
    (root / "evil/1").write_text("xxy\n" + "x" * 1000 + "\n")
    (root / "evil" / ("x" * 250)).write_text("")
    output = await Toolkit.over(Confined(root), 0.5).call(name, arguments)
    assert output.endswith("(cut: the search took longer than 0.5 s; use a simpler pattern or a narrower path)\n")
    assert name == "find" or output.startswith("evil/1:1: xxy\n")


async def test_a_line_far_down_is_found_at_once(root: Path, tools: Toolkit) -> None:
    """Neither a file of nothing but line feeds nor an absurd number keeps the program from its next step."""
    (root / "feeds").write_bytes(b"\n" * 48 * 1024 * 1024 + b"last")
    with anyio.fail_after(5):
        assert await tools.call("read", {"path": "feeds", "start": 10**4000}) == "(the file has 50331649 lines)"
        assert await tools.call("read", {"path": "feeds", "start": 50331648}) == "[L50331648] \n[L50331649] last"


async def test_a_search_that_cannot_be_started(root: Path, tools: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process can be made the search is refused, and the session goes on."""
    monkeypatch.setattr("sys.executable", str(root / "src/a.py"))
    with pytest.raises(ToolRefused, match="the search cannot be started: Permission denied"):
        await tools.call("find", {"glob": "*"})
