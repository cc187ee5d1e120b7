"""The command that agents report with: what it takes, what it refuses, and what it leaves for the program."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kinds.programs.agents import journal, reporting
from kinds.programs.citations import Citation, check
from kinds.programs.confine import Confined
from kinds.programs.observations import Book, Verdict

ASKED = ("naming", "errors")
GOOD = {"practiceSlug": "naming", "outcome": "MET", "summary": "Good names.", "citations": []}
CITED = {"path": "repos/reviewed/a.txt", "startLine": 1, "endLine": 1, "quote": "alpha"}


class Session:
    """A session that an agent reports to."""

    def __init__(self, workspace: Path, practices: tuple[str, ...] = ASKED) -> None:
        self.directory = workspace / ".sessions/agents/1"
        self.directory.mkdir(parents=True)
        (workspace / "repos/reviewed").mkdir(parents=True)
        (workspace / "repos/reviewed/a.txt").write_text("alpha\nbeta\n")
        self.workspace = Confined(workspace)
        self.practices = practices
        self.command = reporting.install(
            self.directory, reporting.Asked(self.workspace.absolute, "repos/reviewed", practices)
        )
        self.reader = journal.Reader(self.workspace, f".sessions/agents/1/{journal.NAME}")
        self.book = Book(practices)

    def report(self, given: Any, *arguments: str) -> tuple[int, list[str]]:
        """Run the command in an empty environment: its exit and the lines it printed."""
        text = given if isinstance(given, str | bytes) else json.dumps(given)
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        done = subprocess.run(
            [self.command, *arguments], input=data, capture_output=True, env={}, cwd="/", timeout=50, check=False
        )
        assert done.stderr == b""
        return done.returncode, done.stdout.decode().splitlines()

    def taken(self) -> list[Verdict]:
        """What the measuring program makes of the new lines of the journal."""

        def checked(given: Any) -> Citation:
            return check(self.workspace, "repos/reviewed", given)

        return [journal.replay(self.book, self.practices, line, checked) for line in self.reader.new()]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path / "a workspace")


@pytest.mark.parametrize("shape", [lambda o: {"observations": [o]}, lambda o: {"observations": o}, lambda o: [o], dict])
def test_an_observation_is_recorded(session: Session, shape: Any) -> None:
    """In each shape that models write, the observation is recorded at once, and the program takes it."""
    given = GOOD | {"citations": [CITED]}
    assert session.report(shape(given)) == (0, ["item 1 (naming): recorded", "still open: errors"])
    (verdict,) = session.taken()
    assert verdict.observation is not None
    assert verdict.observation.as_json() == given
    assert session.book.open() == ["errors"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"practiceSlug": "other"},
            "item 1 (no practice of this session): refused: `practiceSlug` must be one of naming",
        ),
        ({"outcome": "NOT_MET"}, "item 1 (naming): refused: NOT_MET needs a `severity`: one of MINOR, MAJOR, CRITICAL"),
        ({"citations": [CITED | {"path": "/etc/passwd"}]}, "item 1 (naming): refused: "),
        ({"citations": [CITED | {"startLine": 9, "endLine": 9, "quote": None}]}, "item 1 (naming): refused: "),
    ],
)
def test_a_refusal_tells_why(session: Session, change: dict[str, Any], reason: str) -> None:
    """A refused item ends the command with 1 and the tool's own reason; it can be corrected and reported again."""
    code, lines = session.report([GOOD | change])
    assert (code, lines[0][: len(reason)], lines[-1]) == (1, reason, "still open: naming, errors")
    assert session.report([GOOD]) == (0, ["item 1 (naming): recorded", "still open: errors"])
    assert [verdict.observation is None for verdict in session.taken()] == [True, False]


@pytest.mark.parametrize(
    ("given", "exit", "told"),
    [
        ("", 1, "refused: `observations` is not understood: it is not JSON"),
        ("no JSON", 1, "refused: `observations` is not understood: it is not JSON"),
        (b"\xff\xfe\x00", 1, "refused: `observations` is not understood: it is not JSON"),
        ("[" * 100_000, 1, "refused: `observations` is not understood: it is not JSON"),
        ("5", 1, "refused: `observations` is not understood: it is not of the shape that was asked for"),
        (json.dumps([GOOD] * 51), 1, "refused: `observations` holds 51 items; report at most 50 at once"),
        ("x" * 1_048_577, 2, "refused: the input is over 1,048,576 bytes; report fewer observations at once"),
    ],
)
def test_what_is_no_report(session: Session, given: str | bytes, exit: int, told: str) -> None:
    """Whatever stands on the input, it is refused in one line, and nothing is recorded."""
    code, lines = session.report(given)
    assert (code, lines[0]) == (exit, told)
    session.taken()
    assert session.book.recorded == {}


def test_each_item_stands_alone(session: Session) -> None:
    """One refused item of several leaves the others recorded, and a second report of one is refused."""
    code, lines = session.report([GOOD, GOOD | {"practiceSlug": "errors", "outcome": "?"}, GOOD])
    assert (code, lines) == (
        1,
        [
            "item 1 (naming): recorded",
            "item 2 (errors): refused: `outcome` must be one of MET, NOT_MET, NOT_APPLICABLE, UNDETERMINED",
            "item 3 (naming): refused: naming has its observation already",
            "still open: errors",
        ],
    )


def test_eight_refusals(session: Session) -> None:
    """Refusals are counted over all calls: after the eighth the practice is not reached, here and in the program."""
    wrong = GOOD | {"outcome": "?"}
    for _ in range(4):
        session.report([wrong, wrong])
    assert session.report([GOOD]) == (
        1,
        ["item 1 (naming): refused: naming counts as not reached; report it no more", "still open: errors"],
    )
    session.taken()
    assert list(session.book.not_reached) == ["naming"]


def test_many_at_once(tmp_path: Path) -> None:
    """Reports that run at the same time are all recorded, each once, each on a line of its own."""
    practices = tuple(f"practice-{number}" for number in range(8))
    session = Session(tmp_path, practices)
    reports = [[GOOD | {"practiceSlug": slug, "summary": f"{slug} " * 150}] for slug in practices] * 2
    with ThreadPoolExecutor(8) as pool:
        codes = [code for code, _ in pool.map(session.report, reports)]
    assert sorted(codes) == [0] * 8 + [1] * 8
    verdicts = session.taken()
    assert len(verdicts) == 16
    assert session.book.open() == []


def test_the_same_at_once(session: Session) -> None:
    """Of several reports of one practice at the same time one is recorded, and the others are told so."""
    # Long enough that reports which would not wait for each other would all find it open.
    (Path(session.workspace.absolute) / "repos/reviewed/a.txt").write_text("alpha\n" * 200_000)
    given = [GOOD | {"citations": [CITED]}]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(session.report, [given] * 4))
    assert sorted(code for code, _ in answers) == [0] + [1] * 3
    refused = ["item 1 (naming): refused: naming has its observation already", "still open: errors"]
    assert sorted(answers)[1:] == [(1, refused)] * 3


@pytest.mark.parametrize("text", ['"}\n{"item": 1}\n', "\u2028\u2029\x85\r\n", "\ud800", "END\nEND", "\x00\x1b[2J"])
def test_no_text_breaks_a_line(session: Session, text: str) -> None:
    """Whatever a summary holds, the journal has one line for each report."""
    code, _ = session.report([GOOD | {"summary": f"a {text} b"}])
    assert code == 0
    assert len((session.directory / journal.NAME).read_bytes().splitlines()) == 1
    (verdict,) = session.taken()
    assert verdict.observation is not None


def test_what_others_write(session: Session) -> None:
    """Lines that no report wrote are told and change nothing, and what they claim is checked as if it were reported."""
    forged = {"item": GOOD | {"practiceSlug": "errors", "citations": [CITED | {"path": "repos/reviewed/none.txt"}]}}
    lines = [b"\xff\x00", b"[]", b"{}", b'{"refused": 7}', b"[" * 50_000, json.dumps(forged).encode()]
    (session.directory / journal.NAME).write_bytes(b"\n".join(lines) + b"\n")
    verdicts = session.taken()
    assert [verdict.observation for verdict in verdicts] == [None] * 6
    assert verdicts[0].refusal == "the journal has a line that no report wrote"
    assert session.report([GOOD])[0] == 0
    assert [verdict.practice for verdict in session.taken()] == ["naming"]


def test_a_report_that_was_killed(session: Session) -> None:
    """Half a line at the end is nobody's report: it is not read, and the next report takes its place."""
    session.report([GOOD])
    with (session.directory / journal.NAME).open("ab") as file:
        file.write(b'{"item": {"practiceSlug": "err')
    assert len(session.taken()) == 1
    assert session.report([GOOD | {"practiceSlug": "errors"}])[0] == 0
    assert [verdict.practice for verdict in session.taken()] == ["errors"]
    assert session.book.open() == []


def test_a_full_journal(session: Session) -> None:
    """A journal has a bound: what would pass it is refused and says so."""
    beside = len(journal.refused_line(None, ""))
    line = journal.refused_line(None, "x" * (journal.MOST_BYTES - beside))
    (session.directory / journal.NAME).write_bytes(line)
    code, lines = session.report([GOOD | {"summary": "s" * 2000}])
    assert code == 2
    assert lines[0].startswith("nothing was recorded: ")
    assert "this session has room for" in lines[0]


def test_too_many_reports(session: Session) -> None:
    """A session may report so often and no more, whoever wrote the lines; the program reads no more either."""
    (session.directory / journal.NAME).write_bytes(b"{}\n" * 5000)
    assert session.report([GOOD]) == (
        2,
        ["nothing was recorded: this session has reported 1,000 items, which is all it may; stop"],
    )
    assert len(session.taken()) == 1000
    assert session.taken() == []


def test_a_link_in_the_journals_place(session: Session, tmp_path: Path) -> None:
    """Neither the command nor the program follows a link that was put where the journal goes."""
    (session.directory / journal.NAME).symlink_to(tmp_path / "elsewhere")
    assert session.report([GOOD])[0] == 2
    assert session.taken() == []
    assert not (tmp_path / "elsewhere").exists()


def test_arguments_are_refused(session: Session) -> None:
    """The report stands on the input: arguments are told so."""
    assert session.report([GOOD], "--help") == (
        2,
        ["report-observation takes no arguments: give the observations as JSON on its input"],
    )
