"""The call that admits the observations, at the end of a measurement."""

from typing import Any, Final

from kinds.programs import progress
from kinds.programs.errors import CallBusy, CallCut, CallFault, CallUnanswered
from kinds.programs.exchange import Body, Door, exchange
from kinds.programs.model import Waits, refusal
from kinds.programs.retry import Backoff
from kinds.programs.wires import decode, encode

PATH: Final = "/review/observations"

_ANSWER_BYTES: Final = 16 * 1024 * 1024


async def admit(door: Door, observations: list[dict[str, Any]], waits: Waits) -> dict[str, Any]:
    """Post the observations; the gateway's `{digest, admitted, refused}`.

    Raises CallUnanswered when no try reached the gateway, and CallRefused when it refused them for good.
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
    if not isinstance(admission.get("digest"), str) or not all(
        isinstance(admission.get(name), list) for name in ("admitted", "refused")
    ):
        raise CallCut("the answer is no admission: it needs digest, admitted and refused")
    return {name: admission[name] for name in ("digest", "admitted", "refused")}
