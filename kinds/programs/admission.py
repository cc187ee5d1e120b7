"""The call that admits the observations, at the end of a measurement."""

from typing import Any, Final

from kinds.programs import progress
from kinds.programs.errors import CallBusy, CallCut, CallFault, CallUnanswered
from kinds.programs.exchange import Body, Door, exchange
from kinds.programs.model import Waits, refusal
from kinds.programs.retry import Backoff
from kinds.programs.wires import decode, encode

PATH: Final = "/review/observations"

# It goes into the result, whose files are bounded too.
_ANSWER_BYTES: Final = 2 * 1024 * 1024


async def admit(door: Door, observations: list[dict[str, Any]], waits: Waits) -> dict[str, Any]:
    """Post the observations; the gateway's `{digest, admitted, refused}`.

    Raises CallUnanswered when no try reached the gateway, and CallRefused or ContextFull when it refused them for
    good.
    """
    body = encode({"observations": observations})
    backoff = Backoff(waits.chance, waits.retries)
    while True:
        try:
            return await _post(door, body, waits)
        except (CallCut, CallBusy) as error:
            await _wait(backoff, error, waits)


async def _wait(backoff: Backoff, error: CallFault, waits: Waits) -> None:
    seconds = backoff.after(error)
    if seconds is None:
        raise CallUnanswered(f"not admitted after {backoff.spent + 1} tries; the last: {error}") from error
    progress.say(f"admission failed, next try in {seconds:.1f} s: {error}")
    await waits.sleep(seconds)


async def _post(door: Door, body: bytes, waits: Waits) -> dict[str, Any]:
    headers = [("authorization", f"Bearer {door.key}"), ("accept", "application/json")]
    async with exchange(door, PATH, headers, Body(len(body), (body,)), waits.patience) as answer:
        if answer.status != 200:
            raise await refusal(answer, waits.wall)
        admission = decode(await answer.read(_ANSWER_BYTES))
    digest = admission.get("digest")
    admitted, refused = _entries(admission.get("admitted"), "id"), _entries(admission.get("refused"), "reason")
    if not isinstance(digest, str) or admitted is None or refused is None:
        raise CallCut("the answer is no admission: it needs digest, admitted and refused")
    return {"digest": digest, "admitted": admitted, "refused": refused}


def _entries(value: Any, name: str) -> list[dict[str, Any]] | None:
    """A list of `index` and one text for each, or None when it is something else."""
    if not isinstance(value, list):
        return None
    entries = [{"index": one.get("index"), name: one.get(name)} for one in value if isinstance(one, dict)]
    sound = all(type(entry["index"]) is int and isinstance(entry[name], str) for entry in entries)
    return entries if sound and len(entries) == len(value) else None
