"""Scenarios: what the stub plays, as one TOML file (docs/stub.md, "Scenarios").

[run]        kind, subject, lease_seconds, deadline_seconds, work_seconds, attempts, compose, ...; [[run]] for several
[sandbox]    what is known of the sandbox
[capacity]   turns: how many conversation runs may be leased at one time
[workspace]  directory, or repository and range; without either an example repository is made
[model]      id, wire, in_flight, turns; [[model.session]] answers the sessions that hold its `match`
[[fault]]    at, nth, what, and what that needs
"""

import tomllib
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from driver.gateway.wire import ModelWire
from driver.stub.conversations import CONVERSATION_KINDS
from driver.stub.errors import ScenarioError
from driver.stub.fault_table import FaultTable, Positive, Seconds, Table
from driver.stub.runs import RunTerms

_BUNDLED: Final = Path(__file__).parent / "scenarios"


class TermsTable(Table):
    """The terms of a run. Its deadline counts from each claim; `context` is added to what its kind is told."""

    lease_seconds: Positive = 60.0
    deadline_seconds: Positive | None = 900.0
    start_within_seconds: Positive | None = None
    work_seconds: Positive = 600.0
    attempts: int = Field(3, ge=1)
    retry_seconds: Seconds = 1.0
    upload_seconds: Positive = 600.0
    context: dict[str, Any] = Field(default_factory=dict)


class RunTable(TermsTable):
    """One run. With `compose` (true, or a table of terms) a review is followed by the composition of its feedback."""

    id: str | None = Field(None, pattern=r"^[A-Za-z0-9._:-]{1,200}$")
    kind: str = "REVIEW"
    subject: str = Field("review:1", min_length=1)
    compose: TermsTable | None = None

    @field_validator("compose", mode="before")
    @classmethod
    def _yes_or_no(cls, value: object) -> object:
        return {True: {}, False: None}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _composes_a_review(self) -> Self:
        if self.compose is not None and self.kind != "REVIEW":
            raise ValueError("`compose` goes with the kind REVIEW only")
        return self

    def composed_by(self, run_id: str) -> str:
        """The id of the run that composes the feedback of this review."""
        return f"{run_id}-compose"

    @model_validator(mode="before")
    @classmethod
    def _subject_of_its_kind(cls, values: object) -> object:
        if isinstance(values, dict) and values.get("kind") in CONVERSATION_KINDS:
            return {"subject": "conversation:1", **values}
        return values

    def named(self, number: int) -> str:
        """The id of this run, the `number`th of the scenario."""
        return self.id or f"run-{number}"

    def terms(self, number: int) -> RunTerms:
        """The terms of this run, the `number`th of the scenario."""
        return RunTerms(
            id=self.named(number),
            kind=self.kind,
            subject=self.subject,
            lease=timedelta(seconds=self.lease_seconds),
            deadline=None if self.deadline_seconds is None else timedelta(seconds=self.deadline_seconds),
            start_within=None if self.start_within_seconds is None else timedelta(seconds=self.start_within_seconds),
            attempts=self.attempts,
            retry_after=timedelta(seconds=self.retry_seconds),
        )


class SandboxTable(Table):
    """`drives` are the kinds that the gateway believes the sandbox drives; without it, what the pull names."""

    workspace: str = "workspace:1"
    life_seconds: Positive = 3600.0
    drives: list[str] | None = None


class CapacityTable(Table):
    """`turns` caps the leased runs of both conversation kinds together, over all subjects."""

    turns: int | None = Field(None, ge=1)


class WorkspaceTable(Table):
    directory: Path | None = None
    repository: Path | None = None
    range: str | None = None
    practices: Path | None = None
    title: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.directory is not None and self.repository is not None:
            raise ValueError("`directory` and `repository` exclude each other")
        if (self.repository is None) != (self.range is None):
            raise ValueError("`repository` and `range` belong together")
        return self

    def below(self, base: Path) -> "WorkspaceTable":
        """The same with its relative paths below `base`."""
        named = {n: getattr(self, n) for n in ("directory", "repository", "practices")}
        return self.model_copy(update={n: base / p.expanduser() for n, p in named.items() if p is not None})


class ToolCall(Table):
    """A tool call of the scripted model. Arguments given as text are sent as they are, valid JSON or not."""

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)


class Usage(Table):
    input: int = Field(ge=0)
    output: int = Field(ge=0)
    cached: int = Field(0, ge=0)
    reasoning: int = Field(0, ge=0)


class Turn(Table):
    """One answer of the scripted model: its own text and calls, or what a rule makes of the request."""

    text: str = ""
    calls: list[ToolCall] = Field(default_factory=list)
    rule: Literal["report", "compose", "answer"] | None = None
    usage: Usage | None = None
    delay_seconds: Seconds = 0.0
    gap_seconds: Seconds = 0.0

    @model_validator(mode="after")
    def _rule_alone(self) -> Self:
        if self.rule and (self.text or self.calls):
            raise ValueError("a turn with a `rule` has no `text` and no `calls`")
        return self


class SessionTable(Table):
    """The turns of each session whose instructions or first message hold `match`."""

    match: str = Field(min_length=1)
    turns: list[Turn] = Field(min_length=1)


class ModelTable(Table):
    """The last of `turns` answers every later call when it is a rule; else the model says that it is done.

    Without `in_flight` an attempt may have 170 calls in flight, or 2 of a conversation.
    """

    id: str = Field("scripted-model", min_length=1)
    wire: ModelWire = "responses"
    in_flight: int | None = Field(None, ge=1)
    turns: list[Turn] = Field(default_factory=lambda: [Turn(rule="report")])
    session: list[SessionTable] = Field(default_factory=list)


class Scenario(Table):
    """A whole scenario. The sandbox is the one of the first run's subject."""

    run: list[RunTable] = Field([RunTable()], min_length=1)
    sandbox: SandboxTable = SandboxTable()
    capacity: CapacityTable = CapacityTable()
    workspace: WorkspaceTable = WorkspaceTable()
    model: ModelTable = ModelTable()
    fault: list[FaultTable] = Field(default_factory=list)

    @field_validator("run", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return [value] if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _each_run_once(self) -> Self:
        names = [run.named(number) for number, run in enumerate(self.run, 1)]
        names += [run.composed_by(name) for run, name in zip(self.run, names, strict=True) if run.compose is not None]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two runs are called {twice}")
        return self

    @property
    def subject(self) -> str:
        return self.run[0].subject


def bundled_scenarios() -> list[str]:
    """The names of the scenarios that come with the stub, sorted."""
    return sorted(path.stem for path in _BUNDLED.glob("*.toml"))


def load_scenario(name_or_path: str) -> Scenario:
    """A bundled scenario by its name, or one from a file. Raises ScenarioError, naming the field."""
    bundled = name_or_path in bundled_scenarios()
    path = _BUNDLED / f"{name_or_path}.toml" if bundled else Path(name_or_path)
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ScenarioError(f"scenario {name_or_path}: no such file, and none of {_listed()}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ScenarioError(f"scenario {name_or_path}: {error}") from None
    scenario = parse_scenario(data, name_or_path)
    return scenario.model_copy(update={"workspace": scenario.workspace.below(path.parent.absolute())})


def parse_scenario(data: Mapping[str, Any], name: str = "scenario") -> Scenario:
    """The scenario that a TOML document states. Raises ScenarioError, naming the field."""
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ScenarioError(f"scenario {name}: {where}: {first['msg'].removeprefix('Value error, ')}") from None


def _listed() -> str:
    return ", ".join(bundled_scenarios())
