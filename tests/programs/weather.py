"""A wide review, and a model that says the same whatever the weather between it and the program is."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.programs.fake_door import Refuse, Say, Seen, make_workspace, met, report

HELLO = "repos/reviewed/src/hello.py"
LOST, STUBBORN, QUIET = "p17", "p40", "p77"
"""One of the session that nobody answers, one that is never reported well, and one that is left out."""

_AREAS = (10, 9, *[4] * 17, *[3] * 11)
_RECORDED = re.compile(r"Item \d+ \((p\d+)\): recorded")


def wide_workspace(root: Path) -> Path:
    """120 practices in 30 areas: two areas take two sessions each."""
    areas = [f"area {number}" for number, size in enumerate(_AREAS) for _ in range(size)]
    return make_workspace(root, {f"p{number}": area for number, area in enumerate(areas)})


def answer(seen: Seen) -> Say | Refuse:
    """What the model says; it is the same for the same transcript."""
    practices = seen.practices
    if LOST in practices:
        return Refuse(503, {"error": {"message": "overloaded"}})
    if seen.turn == 0:
        return Say("Looking.", calls=(("read", {"path": HELLO}), ("ls", {"path": "repos"}), ("read", {"path": "none"})))
    half = practices[: len(practices) // 2] if seen.turn == 1 else practices[len(practices) // 2 :]
    if seen.turn > 2:
        # What was refused is tried again and again; what is left out stays so.
        half = [STUBBORN] if STUBBORN in practices and seen.turn < 12 else []
    items = [_observation(slug) for slug in half if slug != QUIET]
    return Say(calls=(report(*items),)) if items else Say("Done.")


def _observation(slug: str) -> dict[str, object]:
    if slug == STUBBORN:
        return met(slug, citations=[{"path": "nowhere.py", "startLine": 1, "endLine": 1}])
    if int(slug[1:]) % 3:
        return met(slug)
    # The line is wrong and the quote is right.
    place = {"path": "src/hello.py", "startLine": 1, "endLine": 1, "quote": "return 'hello ' + name"}
    return met(slug, outcome="NOT_MET", severity="MINOR", citations=[place])


class Weather:
    """The script of a provider in bad weather.

    Of one call at most three tries in a row fail, so that it is answered in the end. `told` is what the model was told
    is recorded. `reached` is called with call number `until`, and those after it are never answered.
    """

    def __init__(
        self, seed: int | None, *, stalls: bool, until: int | None = None, reached: Callable[[], None] = lambda: None
    ) -> None:
        """Without a seed the sun shines."""
        self._seed = seed
        self._stalls = stalls
        self._until = until
        self._reached = reached
        self._tries: Counter[tuple[str, int]] = Counter()
        self.calls = 0
        self.told: set[str] = set()
        self.failures: Counter[str] = Counter()

    def script(self, seen: Seen) -> Say | Refuse:
        self.calls += 1
        self.told |= set(_RECORDED.findall(seen.text))
        if self.calls == self._until:
            self._reached()
        if self._until is not None and self.calls > self._until:
            return Say("And so on", stall=True)
        call = (seen.practices[0], seen.turn)
        self._tries[call] += 1
        said = answer(seen)
        if self._seed is None or isinstance(said, Refuse):
            return said
        chance = Random(f"{self._seed} {call} {self._tries[call]}")
        after = chance.uniform(0, 0.05)
        kinds = ["busy", "busy at once", "broken", "cut", "end", *(["stall"] if self._stalls else [])]
        kind = chance.choice(kinds) if self._tries[call] <= 3 and chance.random() < 0.3 else "fine"
        self.failures[kind] += 1
        match kind:
            case "busy":
                return Refuse(429, headers=(), after=after)
            case "busy at once":
                return Refuse(429, headers=(("retry-after", "0"),), after=after)
            case "broken":
                return Refuse(502, after=after)
            case "cut" | "end" | "stall":
                return Say("half", calls=said.calls, after=after, **{kind: True})
        return Say(said.text, said.calls, after=after)


def expected() -> dict[str, str]:
    """What becomes of each practice."""
    lost = "the model did not answer: no answer after 6 tries; the last: 503 overloaded"
    reasons = {f"p{number}": lost for number in range(10, 18)}
    states = {f"p{number}": "RECORDED" for number in range(120)} | reasons
    states[QUIET] = "the model stopped, and again after a reminder"
    states[STUBBORN] = "8 observations were refused; the last: nowhere.py cannot be opened: No such file or directory"
    return states


def states(result: str) -> dict[str, str]:
    """What became of each practice, in a result: each is there once, and has an observation when it was recorded."""
    document = json.loads(result)
    coverage = {one["practiceSlug"]: one.get("reason", one["state"]) for one in document["coverage"]}
    recorded = [one["practiceSlug"] for one in document["observations"]]
    assert len(coverage) == len(document["coverage"])
    assert [slug for slug, state in coverage.items() if state == "RECORDED"] == recorded
    assert all(coverage.values())
    return coverage
