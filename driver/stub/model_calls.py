"""The model gateway: the scripted model, or a real provider, behind the fence and the limit of calls in flight."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import anyio

from driver.stub.answers import Answer, Body, json_answer
from driver.stub.errors import Rejected
from driver.stub.model.conversation import Conversation, Reply
from driver.stub.model.script import WIRES, Wire, models, tokens
from driver.stub.provider import Provider
from driver.stub.received import Received
from driver.stub.scenario import Turn
from driver.stub.state import GatewayState

# The frame with the usage, broken off in it: the one that nobody between model and program may overlook.
_MALFORMED: Final = {
    "responses": b'event: response.completed\ndata: {"type":"response.completed","response":{"usage":{"input_tok\n\n',
    "chat/completions": b'data: {"object":"chat.completion.chunk","choices":[],"usage":{"prompt_tok\n\n',
    "messages": b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tok\n\n',
}
_STREAM: Final = (("content-type", "text/event-stream"), ("cache-control", "no-store"))


class ModelCalls:
    """Answers `P/model/v1/…`. Without a provider the script answers."""

    def __init__(self, state: GatewayState, provider: Provider | None = None) -> None:
        self._state = state
        self._provider = provider

    @asynccontextmanager
    async def answer(self, received: Received) -> AsyncIterator[Answer]:
        """The answer to a model call, open while in the block. Raises Rejected."""
        state = self._state
        run = state.runs.require_current(received.run_id, received.epoch)
        state.require_admitted(run)
        attempt = state.take_slot(run)
        state.journal.record("model.call_opened", run=run.terms.id, epoch=run.epoch)
        try:
            if self._provider is not None:
                request = received.exchange.request
                async with self._provider.call(received.model_path, request, received.body) as answer:
                    if answer.status >= 400:
                        state.journal.record("provider.refused", run=received.run_id, status=answer.status)
                    yield _struck(answer, received)
            else:
                yield _struck(await self._scripted(received), received)
        finally:
            state.in_flight[attempt] -= 1
            state.journal.record("model.call_settled", run=attempt[0], epoch=attempt[1])

    async def _scripted(self, received: Received) -> Answer:
        if received.model_path == "models":
            return json_answer(models(self._state.scenario.model.id))
        body = _object(received.body)
        if received.model_path == "messages/count_tokens":
            return json_answer({"input_tokens": tokens(len(received.body))})
        wire = WIRES[received.model_path]
        conversation = wire.read(body)
        turn = self._state.script.turn(conversation)
        reply = self._state.script.reply(conversation, turn, len(received.body))
        await anyio.sleep(turn.delay_seconds)
        if not conversation.stream:
            return json_answer(wire.answer(reply))
        return Answer(200, _STREAM, _frames(wire, reply, conversation, turn))


async def _frames(wire: Wire, reply: Reply, conversation: Conversation, turn: Turn) -> Body:
    for frame in wire.frames(reply, conversation):
        yield frame
        await anyio.sleep(turn.gap_seconds)


def _struck(answer: Answer, received: Received) -> Answer:
    """The answer with a malformed frame after its first, where that fault strikes a stream."""
    if "malformed_frame" not in received.strikes or isinstance(answer.body, bytes):
        return answer
    return Answer(answer.status, answer.headers, _with_malformed(answer.body, _MALFORMED[received.model_path]))


async def _with_malformed(body: Body, frame: bytes) -> Body:
    async with aclosing(body):
        yield await anext(body, b"")
        yield frame
        async for chunk in body:
            yield chunk


def _object(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise Rejected(400, "invalid_request", "the body is not JSON") from None
    if not isinstance(data, dict):
        raise Rejected(400, "invalid_request", "the body is not a JSON object")
    return data
