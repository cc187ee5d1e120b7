"""The worlds of the first seeds break no rule; the same seed tells the same story."""

import pytest

from tests.simulation.__main__ import main, story
from tests.simulation.history import trace
from tests.simulation.world import Told

SEEDS = 40


@pytest.fixture(scope="module")
def stories() -> dict[int, tuple[Told, list[str]]]:
    return {seed: story(seed) for seed in range(1, SEEDS + 1)}


def test_no_rule_is_broken(stories: dict[int, tuple[Told, list[str]]]) -> None:
    """What is shown of one that is: its seed, the rule and the moment."""
    assert {seed: broken for seed, (_, broken) in stories.items() if broken} == {}


@pytest.mark.parametrize("seed", [3, 8, 13])
def test_a_seed_tells_the_same_story(seed: int) -> None:
    """To the millisecond and the byte."""
    first, second = story(seed)[0], story(seed)[0]
    assert trace(first.moments) == trace(second.moments)
    assert first == second


def test_seeds_tell_of_everything(stories: dict[int, tuple[Told, list[str]]]) -> None:
    """In those worlds happens what the simulation is there for; a rule about what never happens holds always."""
    moments = [moment for told, _ in stories.values() for moment in told.moments]
    events = {moment.what for moment in moments if moment.who == "world"}
    assert events >= {"stop", "stop_twice", "kill", "suspend", "step_clock", "take_away", "move_deadline", "outage"}
    assert {moment.status for moment in moments if moment.what == "heard"} >= {200, 204, 401, 409, 429, 500}
    assert {moment.outcome for moment in moments if "answer" in moment.fields} >= {"COMPLETED", "FAILED", "INTERRUPTED"}
    assert {moment.exit for moment in moments if moment.what == "measured"} == {0, 1, 137, 143, 124}


def test_the_story_of_a_seed_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each moment: when, who and what."""
    monkeypatch.setattr("sys.argv", ["simulation", "--seed", "3"])
    assert main() == 0
    assert capsys.readouterr().out == trace(story(3)[0].moments) + "\n"
