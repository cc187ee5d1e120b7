"""Faults: what strikes which call, as a table of a scenario (docs/stub.md, "Scenarios")."""

from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Place = Literal["next", "renew", "context", "runtime", "workspace", "observations", "result", "end", "model"]
What = Literal[
    "status",
    "delay",
    "reset",
    "lost_reply",
    "cut_after",
    "wrong_digest",
    "stall",
    "malformed_frame",
    "take_away",
    "revoke",
    "deadline_in",
    "refuse",
    "withdraw",
]

# About thirty years: any moment that comes of it can be written down.
_MOST_SECONDS: Final = 10.0**9
Seconds = Annotated[float, Field(ge=0, le=_MOST_SECONDS)]
Positive = Annotated[float, Field(gt=0, le=_MOST_SECONDS)]

_NEEDS: Final[dict[str, str]] = {
    "status": "status",
    "delay": "seconds",
    "cut_after": "bytes",
    "deadline_in": "seconds",
}
_ONLY_AT: Final[dict[str, frozenset[str]]] = {
    "wrong_digest": frozenset({"runtime", "workspace", "result"}),
    "malformed_frame": frozenset({"model"}),
    "refuse": frozenset({"end"}),
    "withdraw": frozenset({"renew", "context", "model", "end"}),
    "take_away": frozenset({"renew", "context", "runtime", "workspace", "observations", "result", "end", "model"}),
    "deadline_in": frozenset({"renew", "context", "runtime", "workspace", "observations", "result", "model"}),
}


class Table(BaseModel):
    """A table of a scenario: a name that is not known is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FaultTable(Table):
    """What strikes the `nth` call at a place."""

    at: Place
    nth: int | Literal["every"] = 1
    what: What
    status: int | None = Field(None, ge=300, le=599)
    retry_after: str | None = Field(None, pattern=r"^[\x20-\x7e]{1,100}$")
    seconds: Seconds | None = None
    bytes: int | None = Field(None, ge=0)

    @field_validator("nth")
    @classmethod
    def _counted_from_one(cls, nth: int | str) -> int | str:
        if isinstance(nth, int) and nth < 1:
            raise ValueError("must be at least 1, or `every`")
        return nth

    @field_validator("retry_after", mode="before")
    @classmethod
    def _seconds_or_date(cls, value: object) -> object:
        return str(value) if isinstance(value, int) else value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        needed = _NEEDS.get(self.what)
        if needed and getattr(self, needed) is None:
            raise ValueError(f'`what = "{self.what}"` needs `{needed}`')
        if self.at not in _ONLY_AT.get(self.what, {self.at}):
            raise ValueError(f"`{self.what}` can strike only at {', '.join(sorted(_ONLY_AT[self.what]))}")
        return self
