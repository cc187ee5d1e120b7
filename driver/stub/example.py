"""A small repository to review where nobody names one. Its commits are the same each time."""

from pathlib import Path
from typing import Final

from driver.stub.git import Git

RANGE: Final = "HEAD~2..HEAD"

_WHO: Final = {
    "GIT_AUTHOR_NAME": "Ada Example",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada Example",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}

_COMMITS: Final[list[tuple[str, dict[str, str]]]] = [
    (
        "Add the stock list",
        {
            "README.md": "# Stock\n\nCounts what is on the shelves.\n",
            "stock/shelf.py": (
                '"""What lies on one shelf."""\n\n\n'
                "class Shelf:\n"
                "    def __init__(self) -> None:\n"
                "        self.items: dict[str, int] = {}\n\n"
                "    def add(self, name: str, count: int) -> None:\n"
                "        self.items[name] = self.items.get(name, 0) + count\n"
            ),
        },
    ),
    (
        "Take items off a shelf",
        {
            "stock/shelf.py": (
                '"""What lies on one shelf."""\n\n\n'
                "class Shelf:\n"
                "    def __init__(self) -> None:\n"
                "        self.items: dict[str, int] = {}\n\n"
                "    def add(self, name: str, count: int) -> None:\n"
                "        self.items[name] = self.items.get(name, 0) + count\n\n"
                "    def take(self, name: str, count: int) -> int:\n"
                "        try:\n"
                "            left = self.items[name] - count\n"
                "        except:\n"
                "            return 0\n"
                "        self.items[name] = left  # TODO: what if this is negative?\n"
                "        return count\n"
            ),
        },
    ),
    (
        "Load shelves from a file, with a test for adding",
        {
            "stock/load.py": (
                '"""Reads shelves from a JSON file."""\n\n'
                "import json\n"
                "from pathlib import Path\n\n"
                "from stock.shelf import Shelf\n\n\n"
                "def load(path: Path) -> Shelf:\n"
                "    shelf = Shelf()\n"
                '    for name, count in json.loads(path.read_text("utf-8")).items():\n'
                '        print("loading", name)\n'
                "        shelf.add(name, count)\n"
                "    return shelf\n"
            ),
            "tests/test_shelf.py": (
                "from stock.shelf import Shelf\n\n\n"
                "def test_adding_twice_adds_up() -> None:\n"
                "    shelf = Shelf()\n"
                '    shelf.add("nail", 2)\n'
                '    shelf.add("nail", 3)\n'
                '    assert shelf.items == {"nail": 5}\n'
            ),
        },
    ),
]


def make_example(target: Path, scratch: Path) -> None:
    """Make the example repository at `target`. Blocks."""
    target.mkdir(parents=True)
    git = Git(target, scratch)
    git.run("init", "-q", "--template=")
    for day, (subject, files) in enumerate(_COMMITS, 1):
        for name, content in files.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, "utf-8")
        date = f"2026-01-0{day}T12:00:00+00:00"
        git.run("add", "--all")
        dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        git.run("commit", "-q", "-m", subject, environment={**_WHO, **dates})
