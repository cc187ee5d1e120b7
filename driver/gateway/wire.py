"""The messages between driver and gateway, as docs/protocol.md states them.

JSON is UTF-8 and camelCase. Unknown fields are ignored; a missing or wrong one is a ContractError that
names it. Times are of the gateway's clock: only their difference to `now` of the same message is used.
"""

from datetime import datetime
from typing import Any, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Outcome = Literal["COMPLETED", "FAILED", "INTERRUPTED", "UNISOLATED", "UNSUPPORTED"]
ModelWire = Literal["responses", "chat", "messages"]

CONTRACT: Final = 1
"""The version of the protocol that this driver speaks (`contract` of Runtime)."""

DIGEST_NOT_ADMITTED: Final = "digest_not_admitted"
"""The code of a 403 that says: admission does not want this work (any more)."""


class Message(BaseModel):
    """A JSON message. Python names are snake_case, wire names camelCase."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        serialize_by_alias=True,
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        defer_build=True,
    )


class NextRequest(Message):
    kinds: list[str]
    driver: str


class Run(Message):
    # One part of a path, so not of dots alone.
    id: str = Field(max_length=200, pattern=r"^[A-Za-z0-9._:-]*[A-Za-z0-9_:-][A-Za-z0-9._:-]*$")
    kind: str
    subject: str
    epoch: int = Field(ge=1)
    attempt: int = Field(ge=0)


class Lease(Message):
    """`leased_until - now` is what is left of the lease at the moment the request was sent, at least."""

    now: AwareDatetime
    leased_until: AwareDatetime
    deadline: AwareDatetime | None = None

    @property
    def lease_seconds(self) -> float:
        return _seconds(self.now, self.leased_until)

    @property
    def deadline_seconds(self) -> float | None:
        return None if self.deadline is None else _seconds(self.now, self.deadline)


class Claim(Lease):
    run: Run


class ModelChoice(Message):
    """`context_tokens` is how much the model takes at once, where the gateway knows it."""

    id: str = Field(min_length=1)
    wire: ModelWire
    context_tokens: int | None = Field(default=None, ge=1)


class Context(Message):
    """What every kind's context has; the kind validates the rest of it with its own model."""

    model_config = ConfigDict(extra="allow")

    kind: str
    model: ModelChoice
    work_seconds: float = Field(gt=0)


class Runtime(Message):
    contract: int
    workspace_bytes: int = Field(ge=0)
    workspace_digest: str = Field(pattern=r"^sha-256=:[A-Za-z0-9+/]{43}=:$")
    result_bytes: int = Field(ge=0)
    upload_seconds: float = Field(gt=0)


class Refusal(Message):
    """Why one observation was not admitted. `index` is its place in what was sent."""

    index: int = Field(ge=0)
    reason: str


class Admitted(Message):
    """An admitted observation. `index` is its place in what was sent."""

    index: int = Field(ge=0)
    id: str


class Admission(Message):
    digest: str
    admitted: list[Admitted]
    refused: list[Refusal]


class End(Message):
    outcome: Outcome
    exit: int | None = None
    reason: str | None = None
    answer: dict[str, Any] | None = None


class EndResult(Message):
    result: Literal["ENDED", "ALREADY_ENDED", "REFUSED"]
    reason: str | None = None


class Problem(Message):
    """An RFC 9457 problem document. A body that is none changes nothing: the status decides."""

    type: str = "about:blank"
    title: str | None = None
    status: int | None = None
    detail: str | None = None
    code: str | None = None


def _seconds(start: datetime, end: datetime) -> float:
    return (end - start).total_seconds()
