"""Which end a run gets for what its kind returned or raised."""

from collections.abc import Sequence
from typing import Final

from driver.errors import NO_ROOM, DriverError, GatewayRefused, KindFailed, UnknownKind, leaves, no_room
from driver.exits import ProgramExit
from driver.gateway.wire import DIGEST_NOT_ADMITTED, End
from driver.kind import Outcome
from driver.lease import Loss, loss_for

REASON_CHARACTERS: Final = 2000


def end_of(outcome: Outcome) -> End:
    """The end that a kind's outcome asks for.

    Raises where it cannot be told, as for an answer that is no JSON: TypeError or ValueError.
    """
    answer = dict(outcome.answer) if outcome.answer is not None else None
    end = End(outcome=outcome.outcome, exit=outcome.exit, reason=tellable(outcome.reason), answer=answer)
    end.model_dump_json()
    return end


def end_for(error: Exception) -> End:
    """The end for what a kind raised: of a group's errors the most telling one decides."""
    parts = leaves(error)
    if (loss := loss_in(error)) is not None:
        return End(outcome="FAILED", reason=loss.value)
    if no_room(error):
        failed = next((int(part.exit) for part in parts if isinstance(part, KindFailed)), ProgramExit.NO_OUTPUT)
        return End(outcome="FAILED", exit=failed, reason=NO_ROOM)
    for part in parts:
        if isinstance(part, UnknownKind):
            return End(outcome="UNSUPPORTED", reason=tellable(str(part)))
    for part in parts:
        if isinstance(part, KindFailed):
            return End(outcome="FAILED", exit=int(part.exit), reason=tellable(part.reason))
    for part in parts:
        if isinstance(part, GatewayRefused) and part.code == DIGEST_NOT_ADMITTED:
            return End(outcome="FAILED", exit=ProgramExit.NOT_ADMITTED, reason=tellable(str(part)))
    faults = _faults(parts)
    reason = f"internal fault: {faults[0]!r}" if faults else str(parts[0])
    return End(outcome="FAILED", reason=tellable(reason))


def loss_in(error: Exception) -> Loss | None:
    """What the errors of a kind say of its claim, or None."""
    return next((loss for part in leaves(error) if (loss := loss_for(part)) is not None), None)


def is_fault(error: Exception) -> bool:
    """Whether something went wrong that nobody foresaw; a full disk is foreseen."""
    return bool(_faults(leaves(error)))


def tellable(reason: str | None) -> str | None:
    """A reason as it can be sent: valid Unicode, of at most 2,000 characters."""
    if reason is None:
        return None
    text = str(reason).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= REASON_CHARACTERS else text[: REASON_CHARACTERS - 1] + "…"


def _faults(parts: Sequence[BaseException]) -> list[BaseException]:
    return [part for part in parts if not isinstance(part, DriverError) and not no_room(part)]
