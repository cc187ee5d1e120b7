"""What the door understands of each wire's answers."""

import pytest

from driver.door.headers import to_gateway, to_program
from driver.door.wires import ChatReading, MessagesReading, Reading, ResponsesReading, Usage


def read(reading: Reading, *frames: bytes) -> Reading:
    for frame in frames:
        if reading.glance(frame):
            reading.decode(frame)
    return reading


def event(name: str, data: str, *, named: bool = True) -> bytes:
    return ((f"event: {name}\n" if named else "") + f"data: {data}\n\n").encode()


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("kind", ["completed", "failed", "incomplete"])
def test_responses_end(kind: str, named: bool) -> None:
    """Each of the three last events ends an answer and carries its usage, with or without an event line."""
    name = f"response.{kind}"
    data = f'{{"sequence_number":9,"type":"{name}","response":{{"usage":{{"input_tokens":5,"output_tokens":2}}}}}}'
    reading = read(ResponsesReading(), event(name, data, named=named))
    assert (reading.terminal, reading.usage) == (True, Usage(5, 2))


@pytest.mark.parametrize(
    "data",
    [
        '{"type":"response.output_text.delta","delta":"response.completed \\"error\\""}',
        '{"type":"response.output_item.done","item":{"type":"error"}}',
        '{"type":"response.created","response":{"error":null,"usage":null}}',
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_responses_go_on(data: str, named: bool) -> None:
    """What only looks like an end, in text or deeper down, is none."""
    name = data.split('"')[3]
    reading = read(ResponsesReading(), event(name, data, named=named))
    assert (reading.terminal, reading.usage) == (False, None)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("response.output_text.delta", True),
        ("response.reasoning_summary_text.delta", True),
        ("response.function_call_arguments.delta", True),
        ("response.in_progress", False),
    ],
)
def test_responses_first_content(name: str, content: bool, named: bool) -> None:
    """Text, reasoning and tool calls are content; what comes before them is not."""
    assert read(ResponsesReading(), event(name, f'{{"type":"{name}"}}', named=named)).content is content


@pytest.mark.parametrize(
    ("frame", "content", "terminal"),
    [
        (b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n', False, False),
        (b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', True, False),
        (b'data: {"choices": [{"delta": {"reasoning_content": "a"}}]}\n\n', True, False),
        (b'data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}\n\n', True, False),
        (b'data: {"choices":[{"delta":{},"finish_reason": "length"}]}\n\n', False, True),
        (b'data: {"choices":[{"delta":{"content":"\\"finish_reason\\":\\"stop\\""}}]}\n\n', True, False),
        (b'data: {"choices":[{"delta":{"content":"data: [DONE]"}}]}\n\n', True, False),
        (b"data: [DONE]\n\n", False, True),
        (b"data:[DONE]\r\n\r\n", False, True),
        (b'data: {"error":{"message":"m"}}\n\n', False, True),
    ],
)
def test_chat_chunks(frame: bytes, content: bool, terminal: bool) -> None:
    """Content and end are seen in the chunk's members, never in its text."""
    reading = read(ChatReading(), frame)
    assert (reading.content, reading.terminal) == (content, terminal)


def test_chat_usage_is_the_last_one_told() -> None:
    """Where each chunk tells the usage so far, the last one counts."""
    chunk = 'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":%d}}\n\n'
    reading = read(ChatReading(), *[(chunk % number).encode() for number in (1, 2, 3)])
    assert reading.usage == Usage(5, 3)


@pytest.mark.parametrize("named", [True, False])
def test_messages_usage_is_put_together(named: bool) -> None:
    """Input, with what was cached, comes first; the output so far replaces what was told before."""
    start = (
        '{"type":"message_start","message":{"usage":{"input_tokens":3,"cache_read_input_tokens":2,"output_tokens":1}}}'
    )
    delta = '{"type":"message_delta","usage":{"output_tokens":%d}}'
    reading = read(
        MessagesReading(),
        event("message_start", start, named=named),
        event("content_block_delta", '{"type":"content_block_delta"}', named=named),
        event("message_delta", delta % 4, named=named),
        event("message_delta", delta % 9, named=named),
    )
    assert (reading.content, reading.terminal, reading.usage) == (True, False, Usage(5, 9))
    read(reading, event("message_stop", '{"type":"message_stop"}', named=named))
    assert reading.terminal


@pytest.mark.parametrize(
    "usage", ['{"input_tokens":"5","output_tokens":true}', '{"input_tokens":-1}', '{"input_tokens":1.5}']
)
def test_nonsense_counts_as_nothing(usage: str) -> None:
    """Numbers that are none do not disturb the counts."""
    reading = ResponsesReading()
    reading.whole(f'{{"usage":{usage}}}'.encode())
    assert reading.usage == Usage(0, 0)


@pytest.mark.parametrize("body", [b"{}", b'{"usage":null}', b'{"usage":[]}', b'[{"usage":{"input_tokens":1}}]'])
def test_untold_usage_is_unknown(body: bytes) -> None:
    """An answer that tells no usage has none, which is not the same as zero."""
    reading = ResponsesReading()
    reading.whole(body)
    # Depth 1 of a list is no object: nothing below it is the answer's usage.
    assert reading.usage is None


def test_hop_by_hop_headers_stay() -> None:
    """Headers of one connection, and those that it names, pass in neither direction."""
    hop = [("connection", "close, X-One"), ("x-one", "1"), ("transfer-encoding", "chunked"), ("upgrade", "h2c")]
    assert to_gateway([*hop, ("accept", "a"), ("x-agent-epoch", "1")]) == [("accept", "a")]
    assert to_program([*hop, ("date", "d"), ("set-cookie", "c")]) == [("date", "d")]
