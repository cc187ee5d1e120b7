"""The practices that a review is asked to measure: an index and one Markdown file each."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from driver.stub.errors import StubError

BUNDLED: Final = Path(__file__).parent / "practices"

_SLUG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


@dataclass(frozen=True)
class Practices:
    """A set of practices on disk. `index` is the content of its `index.json`: `slug`, `area` and `title` each."""

    directory: Path
    index: list[dict[str, Any]]

    @property
    def slugs(self) -> list[str]:
        return [practice["slug"] for practice in self.index]

    def write(self, target: Path) -> None:
        """Put the index and the criteria of each practice into `target`."""
        target.mkdir(parents=True)
        (target / "index.json").write_text(json.dumps(self.index, indent=2) + "\n", "utf-8")
        for slug in self.slugs:
            (target / f"{slug}.md").write_bytes((self.directory / f"{slug}.md").read_bytes())


def load_practices(directory: Path = BUNDLED) -> Practices:
    """Read a set of practices. Raises StubError, naming what is missing or wrong."""
    index = directory / "index.json"
    try:
        data = json.loads(index.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StubError(f"{index}: cannot be read ({_reason(error)})") from None
    if not isinstance(data, list) or not data:
        raise StubError(f"{index}: must be a list that is not empty")
    for practice in data:
        _check(index, practice)
    return Practices(directory, data)


def _check(index: Path, practice: object) -> None:
    if not isinstance(practice, dict):
        raise StubError(f"{index}: each practice is an object")
    for name in ("slug", "area", "title"):
        if not isinstance(practice.get(name), str) or not practice[name]:
            raise StubError(f"{index}: each practice needs `{name}`")
    slug = practice["slug"]
    if not _SLUG.fullmatch(slug):
        raise StubError(f"{index}: slug {slug!r} must be letters, digits, `.`, `-` and `_`")
    if not (index.parent / f"{slug}.md").is_file():
        raise StubError(f"{index.parent / slug}.md: no such file")


def _reason(error: Exception) -> str:
    return error.strerror or "unreadable" if isinstance(error, OSError) else str(error)
