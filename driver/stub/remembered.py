"""What a stub that is started again has to know of the one before it (docs/stub.md, "State that is kept").

The journal, calls in flight and what streams are not in it: they end with the process.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter

from driver.gateway.wire import End
from driver.stub.observations import Admissions
from driver.stub.results import Result
from driver.stub.runs import AgentRun
from driver.stub.sandboxes import Sandbox
from driver.stub.scenario import RunTable


@dataclass(frozen=True)
class Remembered:
    """All of it at one moment. `key`, in hexadecimal digits, signs the tokens; `calls` counts those at each place."""

    key: str
    sandboxes: list[Sandbox]
    runs: list[AgentRun]
    tables: dict[str, RunTable]
    admissions: list[tuple[str, int, Admissions]]
    ends: list[tuple[str, int, End]]
    withdrawn: list[str]
    calls: dict[str, int]
    results: list[Result]


_ADAPTER: Final = TypeAdapter(Remembered)


def to_json(remembered: Remembered) -> str:
    """All of it but the results, whose bodies are long."""
    return json.dumps(_ADAPTER.dump_python(remembered, mode="json", exclude={"results"}))


def from_json(content: str, results: Sequence[Result]) -> Remembered:
    """What `to_json` wrote, and the results. Raises ValueError for anything else."""
    told = json.loads(content)
    if not isinstance(told, dict):
        raise ValueError("the state is no object")
    return _ADAPTER.validate_python({**told, "results": list(results)})
