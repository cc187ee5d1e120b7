"""Answers, and how the faults that strike an answer break it."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import anyio
from pydantic import BaseModel

from driver.http1 import Exchange
from driver.stub.errors import Rejected
from driver.stub.faults import Strikes

Headers = tuple[tuple[str, str], ...]
Body = AsyncGenerator[bytes, None]

_WITHOUT_BODY: Final = (204, 304)
"""RFC 9110, sections 15.3.5 and 15.4.5."""


@dataclass(frozen=True)
class Answer:
    """An answer. A body that is streamed has a `length` when it is known."""

    status: int
    headers: Headers = ()
    body: bytes | Body = b""
    length: int | None = None


def json_answer(message: BaseModel | dict[str, Any], status: int = 200) -> Answer:
    """A message as JSON."""
    if isinstance(message, BaseModel):
        data = message.model_dump_json().encode()
    else:
        data = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
    return Answer(status, (("content-type", "application/json"),), data)


def problem(rejected: Rejected) -> Answer:
    """A problem document (RFC 9457)."""
    document = {
        "type": "about:blank",
        "status": rejected.status,
        "code": rejected.code,
        "detail": rejected.detail,
    }
    headers = (("content-type", "application/problem+json"), *rejected.headers)
    return Answer(rejected.status, headers, json.dumps(document).encode())


async def send(exchange: Exchange, answer: Answer, strikes: Strikes) -> None:
    """Send an answer as far as the faults let it get. Raises ClientGone."""
    if "lost_reply" in strikes:
        await exchange.abort(reset=True)
        return
    if answer.status in _WITHOUT_BODY:
        await exchange.start(answer.status, answer.headers)
        await exchange.finish()
        return
    length = len(answer.body) if isinstance(answer.body, bytes) else answer.length
    framing = (("content-length", str(length)),) if length is not None else ()
    await exchange.start(answer.status, (*answer.headers, *framing))
    if exchange.request.method != "HEAD" and await _send_body(exchange, answer.body, strikes):
        return
    await exchange.finish()


async def _send_body(exchange: Exchange, body: bytes | Body, strikes: Strikes) -> bool:
    """Send the body; True when a fault ended it early."""
    fault = strikes.get("cut_after") or strikes.get("stall")
    left = None if fault is None else fault.bytes
    async with aclosing(_whole(body) if isinstance(body, bytes) else body) as chunks:
        async for chunk in chunks:
            if left is not None and len(chunk) > left:
                if left:
                    await exchange.send(chunk[:left])
                await _break_off(exchange, strikes)
                return True
            if left is not None:
                left -= len(chunk)
            await exchange.send(chunk)
    return False


async def _break_off(exchange: Exchange, strikes: Strikes) -> None:
    if "stall" in strikes:
        await anyio.sleep_forever()
    await exchange.abort()


async def _whole(body: bytes) -> Body:
    if body:
        yield body
