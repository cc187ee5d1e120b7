"""Which observations are recorded, which are refused, and what the refusal tells."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinds.programs.citations import Citation, CitationRefused, check
from kinds.programs.confine import Confined
from kinds.programs.observations import Book, ObservationRefused, items
from kinds.programs.repair import loads

GOOD = {"practiceSlug": "naming", "outcome": "MET", "summary": "Good names.", "citations": []}
PATH = "repos/reviewed/src/a.txt"
FILE = "alpha\n  beta  \ngamma\nbeta\ndelta = 1\r\nepsilon\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Confined:
    place = tmp_path / "repos/reviewed/src"
    place.mkdir(parents=True)
    (place / "a.txt").write_text(FILE, newline="")
    (tmp_path / "outside.txt").symlink_to("/etc/passwd")
    return Confined(tmp_path)


def cite(workspace: Confined, **given: Any) -> Citation:
    return check(
        workspace, "repos/reviewed", {"path": "repos/reviewed/src/a.txt", "startLine": 1, "endLine": 1} | given
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"practiceSlug": "other"}, "`practiceSlug` must be one of naming, errors"),
        ({"practiceSlug": None}, "`practiceSlug` must be one of naming, errors"),
        ({"practiceSlug": ["naming"]}, "`practiceSlug` must be one of naming, errors"),
        ({"outcome": "met"}, "`outcome` must be one of MET, NOT_MET, NOT_APPLICABLE, UNDETERMINED"),
        ({"outcome": []}, "`outcome` must be one of MET, NOT_MET, NOT_APPLICABLE, UNDETERMINED"),
        ({"severity": "MINOR"}, "`severity` goes with NOT_MET only, not with MET"),
        ({"outcome": "NOT_MET"}, "NOT_MET needs a `severity`: one of MINOR, MAJOR, CRITICAL"),
        ({"outcome": "NOT_MET", "severity": "HUGE"}, "NOT_MET needs a `severity`: one of MINOR, MAJOR, CRITICAL"),
        ({"summary": " \n"}, "`summary` must be a text that is not empty"),
        ({"summary": "\x00\ud800"[:1]}, "`summary` must be a text that is not empty"),
        ({"summary": 5}, "`summary` must be a text that is not empty"),
        ({"summary": "x" * 2001}, "`summary` has 2001 characters; at most 2000 are kept"),
        ({"citations": {}}, "`citations` must be a list"),
        ({"citations": [{}] * 21}, "21 citations are too many; give at most 20"),
        ({"citations": ["a.txt:1"]}, "a citation must be an object with path, startLine and endLine"),
    ],
)
def test_what_is_refused(workspace: Confined, change: dict[str, Any], reason: str) -> None:
    """Each rule has its own reason, and a refused item changes nothing."""
    book = Book(("naming", "errors"))
    verdict = book.report(book.practices, GOOD | change, lambda given: check(workspace, "repos/reviewed", given))
    assert (verdict.observation, verdict.refusal) == (None, reason)
    assert book.recorded == {}


@pytest.mark.parametrize("item", [None, "x", 1, [], [GOOD]])
def test_an_item_must_be_an_object(item: Any) -> None:
    """What is no object is refused by itself."""
    assert Book(("naming",)).report(("naming",), item, _no_citation).refusal == "an observation must be an object"


@pytest.mark.parametrize(
    "change", [{}, {"severity": None}, {"citations": None}, {"outcome": "NOT_MET", "severity": "MAJOR"}]
)
def test_what_is_recorded(change: dict[str, Any]) -> None:
    """A good item is recorded, once."""
    book = Book(("naming",))
    assert book.report(("naming",), GOOD | change, _no_citation).refusal is None
    assert book.open() == []
    assert book.report(("naming",), GOOD, _no_citation).refusal == "naming has its observation already"
    assert book.coverage() == [{"practiceSlug": "naming", "state": "RECORDED"}]
    assert ("severity" in book.observations()[0].as_json()) == (change.get("severity") is not None)


def test_the_eighth_refusal_is_the_last() -> None:
    """After eight refusals a practice is not reached; others are not touched; a recorded one stays recorded."""
    book = Book(("naming", "errors"))
    for _ in range(7):
        book.report(book.practices, GOOD | {"outcome": "?"}, _no_citation)
    assert book.open() == ["naming", "errors"]
    last = book.report(book.practices, GOOD | {"outcome": "?"}, _no_citation)
    assert last.refusal is not None
    assert last.refusal.endswith("That was refusal 8 for naming: it counts as not reached now; report it no more.")
    assert book.report(book.practices, GOOD, _no_citation).refusal == "naming counts as not reached; report it no more"
    book.report(book.practices, GOOD | {"practiceSlug": "errors"}, _no_citation)
    for _ in range(9):
        book.report(book.practices, GOOD | {"practiceSlug": "errors"}, _no_citation)
    assert [one["state"] for one in book.coverage()] == ["NOT_REACHED", "RECORDED"]


def _no_citation(given: Any) -> Citation:
    raise AssertionError(given)


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ({}, (1, 1, "alpha")),
        ({"endLine": 3}, (1, 3, "alpha\n  beta  \ngamma")),
        ({"quote": "  "}, (1, 1, "alpha")),
        ({"startLine": 5, "endLine": 5, "quote": "delta"}, (5, 5, "delta = 1")),
        ({"startLine": 1, "endLine": 3, "quote": "gamma"}, (1, 3, "gamma")),
        ({"startLine": 1, "endLine": 2, "quote": "beta"}, (1, 2, "  beta  ")),
        ({"startLine": 4, "endLine": 6, "quote": "beta"}, (4, 6, "beta")),
        ({"quote": "gamma"}, (3, 3, "gamma")),
        ({"startLine": 900, "endLine": 901, "quote": "gamma"}, (3, 3, "gamma")),
        ({"quote": "gamma\nbeta"}, (3, 4, "gamma\nbeta")),
        ({"quote": "beta\ndelta = 1\nepsi"}, (4, 6, "beta\ndelta = 1\nepsilon")),
        ({"startLine": 3, "endLine": 3, "quote": "[L3] +gamma"}, (3, 3, "gamma")),
        ({"quote": "[L4]  beta\n[L5]  delta = 1"}, (4, 5, "beta\ndelta = 1")),
        ({"path": "src/a.txt"}, (1, 1, "alpha")),
        ({"path": "./repos//reviewed/src/a.txt"}, (1, 1, "alpha")),
    ],
)
def test_where_a_citation_is_recorded(
    workspace: Confined, given: dict[str, Any], recorded: tuple[int, int, str]
) -> None:
    """Lines are checked, a quote is found again, the recorded quote is the file's own text."""
    citation = cite(workspace, **given)
    assert (citation.start_line, citation.end_line, citation.quote) == recorded
    assert citation.path == "repos/reviewed/src/a.txt"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"path": "no.txt"}, "no.txt cannot be opened: No such file or directory"),
        ({"path": "../x"}, "../x is refused: `..` is not followed"),
        ({"path": "/etc/passwd"}, "/etc/passwd is outside the workspace; paths are relative to it"),
        ({"path": "outside.txt"}, "outside.txt is refused: outside.txt is a link, and links are not followed"),
        ({"path": "repos"}, "repos is not a regular file"),
        ({"path": ""}, "`path` must be a text that is not empty"),
        ({"startLine": 0}, "`startLine` must be a whole number from 1"),
        ({"startLine": True}, "`startLine` must be a whole number from 1"),
        ({"startLine": "1"}, "`startLine` must be a whole number from 1"),
        ({"startLine": 3, "endLine": 2}, "endLine 2 is before startLine 3"),
        ({"endLine": 7}, "repos/reviewed/src/a.txt has 6 lines, so line 7 is not in it"),
        ({"quote": 1}, "`quote` must be a text"),
        ({"quote": "zeta"}, "the quote is not in repos/reviewed/src/a.txt. The cited lines hold:\n[L1] alpha"),
        (
            {"quote": "beta"},
            f"the quote is in {PATH} more than once (at line 2, 4) but not there. The cited lines hold:\n[L1] alpha",
        ),
        ({"startLine": 9, "endLine": 9, "quote": "beta"}, "repos/reviewed/src/a.txt has 6 lines"),
    ],
)
def test_what_a_citation_is_refused_for(workspace: Confined, given: dict[str, Any], reason: str) -> None:
    """The refusal names the fault, and what the cited lines really hold."""
    with pytest.raises(CitationRefused) as refused:
        cite(workspace, **given)
    assert reason in str(refused.value)


def test_a_range_is_bounded(workspace: Confined) -> None:
    """More than 100 lines are no citation."""
    (workspace.root / "long.txt").write_text("x\n" * 200)
    assert cite(workspace, path="long.txt", endLine=100).end_line == 100
    with pytest.raises(CitationRefused, match="at most 100 lines, not 101"):
        cite(workspace, path="long.txt", endLine=101)


def test_a_fifo_cannot_hold_the_program(workspace: Confined) -> None:
    """What is no regular file is refused at once."""
    os.mkfifo(workspace.root / "fifo")
    with pytest.raises(CitationRefused, match="not a regular file"):
        cite(workspace, path="fifo")


ONE = [{"a": 1, "citations": [{"b": 2}]}]


@pytest.mark.parametrize(
    ("observations", "understood"),
    [
        (ONE, ONE),
        (ONE[0], ONE),
        (json.dumps(ONE), ONE),
        (json.dumps(ONE[0]), ONE),
        ([json.dumps(ONE[0])], ONE),
        (json.dumps(ONE)[:-1], ONE),
        (json.dumps(ONE) + "]", ONE),
        (json.dumps(ONE) + "}", ONE),
        (json.dumps(ONE) + " ] \n", ONE),
        ('[{"a": 1, "citations": [{"b": 2}}]', ONE),
        ('[{"a": 1, "citations": [{"b": 2}]]', ONE),
        ('[{"a": 1, "citations": [{"b": 2]}]', ONE),
        ('[{"a": 1, "citations": [{"b": 2}]}}]', ONE),
        ([1, "x"], [1, "x"]),
        ([], []),
    ],
)
def test_lists_that_are_understood(observations: Any, understood: list[Any]) -> None:
    """A list, one object, either as a string, and with one bracket too many or too few."""
    assert items(json.dumps({"observations": observations})) == understood


def test_broken_arguments_are_understood() -> None:
    """The call's own arguments may lack a bracket too."""
    assert items('{"observations": [{"a": 1}]') == [{"a": 1}]
    assert items('{"observations": [{"a": 1}}') == [{"a": 1}]


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "nonsense",
        "[]",
        '{"observation": []}',
        '{"observations": 5}',
        '{"observations": "5"}',
        '{"observations": null}',
        '{"observations": "[{\\"a\\": 1"}',
        '{"observations": "[{\\"a\\": "}',
        json.dumps({"observations": [{}] * 51}),
        "[" * 100_000,
    ],
)
def test_lists_that_are_not_understood(arguments: str) -> None:
    """Anything else is refused with a reason, and nothing crashes."""
    with pytest.raises(ObservationRefused, match="observations"):
        items(arguments)


@settings(deadline=None)
@given(st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_one_missing_bracket_at_the_end_is_repaired(value: Any) -> None:
    """Whatever the value: one closing bracket that is missing at the very end changes nothing."""
    text = json.dumps([value])
    assert loads(text[:-1], lambda found: isinstance(found, list)) == [value]


@pytest.mark.parametrize("separator", ["\r", "\f", "\u2028"])
def test_a_quote_as_the_tools_show_it(workspace: Confined, separator: str) -> None:
    """A line with an odd separator in it is cited by what `read` and the brief show of it."""
    (workspace.root / PATH).write_text(f"one{separator}two\r\nthree\n", newline="")
    citation = cite(workspace, startLine=2, endLine=2, quote="one two")
    assert (citation.start_line, citation.quote) == (1, "one two")


def test_the_result_has_a_size() -> None:
    """Observations that would make the result too large are refused one by one, with what room is left."""
    book = Book(tuple(f"p{number}" for number in range(400)))
    quote = Citation(PATH, 1, 9, "\N{SNOWMAN}" * 4000)
    verdicts = [
        book.report(book.practices, GOOD | {"practiceSlug": slug, "citations": [{}]}, lambda _: quote)
        for slug in book.practices
    ]
    assert len(json.dumps([o.as_json() for o in book.observations()])) < 6.1 * 1024 * 1024
    assert 200 < len(book.recorded) < 300
    assert verdicts[-1].refusal is not None
    assert "takes 24,1" in verdicts[-1].refusal
    assert "cite less" in verdicts[-1].refusal


def test_a_reason_is_one_bounded_line() -> None:
    """Whatever a refusal quotes, the reason that a practice is not reached for stays fit for a terminal."""
    book = Book(("naming",))
    for _ in range(8):
        bad = GOOD | {"citations": [{"path": "\x1b[31mé" * 100, "startLine": 1, "endLine": 1}]}
        book.report(book.practices, bad, lambda given: check(Confined(Path("/nowhere")), "repos", given))
    reason = book.coverage()[0]["reason"]
    assert reason.isprintable()
    assert len(reason) <= 500
