"""What a stub that is started again has to know of the one before it (docs/stub.md, "State that is kept").

The journal, calls in flight and what streams are not in it: they end with the process.
"""

from dataclasses import dataclass

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
