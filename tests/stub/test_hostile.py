"""A driver that misbehaves on the wire: it is refused with a problem document, and the stub serves on."""

import json
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from driver.http1 import Patience
from driver.stub.scenario import parse_scenario
from driver.stub.server import running_stub
from tests.stub.support import TREE, Caller, P, calling, code_of, digest_of, fault

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
ABSURD_NUMBERS = ["", "-1", "1.0", "\xb2", "9" * 5000, "0x1", "1 2"]


async def serves(caller: Caller) -> None:
    """Nothing has failed inside the stub, and the claim still holds."""
    assert caller.stub.state.journal.named("request.failed") == []
    assert (await caller.post("renew")).status_code == 200


@pytest.mark.parametrize("number", ABSURD_NUMBERS)
async def test_absurd_numbers_in_headers(number: str) -> None:
    """An epoch, an exit, a range or an event's number that is none is refused or ignored."""
    async with calling() as caller:
        await caller.next()
        value = number.encode("latin-1")
        base, claim = f"{P}/runs/run-1", caller.claim_headers
        epoch: dict[str, Any] = {"x-agent-run": "run-1", "x-agent-epoch": value}
        renewed = await caller.http.post(f"{base}/renew", headers=epoch)
        assert (renewed.status_code, code_of(renewed)) == (400, "claim_headers_missing")
        headers: dict[str, Any] = claim | {"content-digest": digest_of(b"x"), "x-agent-exit": value}
        result = await caller.http.post(f"{base}/runtime/result", headers=headers, content=b"x")
        assert (result.status_code, code_of(result)) == (400, "exit_missing")
        asked: dict[str, Any] = claim | {"range": b"bytes=" + value + b"-"}
        assert (await caller.http.get(f"{base}/runtime/workspace", headers=asked)).status_code == 200
        last: dict[str, Any] = {"last-event-id": value}
        async with caller.http.stream("GET", "/stub/events", headers=last) as events:
            assert (await anext(events.aiter_lines())) == "id: 1"
        await serves(caller)


@pytest.mark.parametrize("run", ["", "r" * 201, "..", "a b", "\xe9", "run-2"])
async def test_no_run_of_that_name(run: str) -> None:
    """A model call names its run in a header, which may hold anything."""
    async with calling() as caller:
        await caller.next()
        headers: dict[str, Any] = {"x-agent-run": run.encode("latin-1"), "x-agent-epoch": "1"}
        answer = await caller.http.get(f"{P}/model/v1/models", headers=headers)
        assert (answer.status_code, code_of(answer)) in ((400, "claim_headers_missing"), (404, "run_unknown"))
        await serves(caller)


GOOD = {"practiceSlug": "a", "outcome": "MET", "summary": "s", "citations": []}
CITATION = {"path": "x", "startLine": 1, "endLine": 1}


@pytest.mark.parametrize(
    ("observation", "reason"),
    [
        (None, "an observation is an object"),
        ([], "an observation is an object"),
        (GOOD | {"practiceSlug": []}, "practiceSlug: not a practice of this review"),
        (GOOD | {"practiceSlug": ""}, "practiceSlug: not a practice of this review"),
        (GOOD | {"outcome": []}, "outcome: must be one of"),
        (GOOD | {"outcome": {}}, "outcome: must be one of"),
        (GOOD | {"outcome": "NOT_MET", "severity": {}}, "severity: must be one of"),
        (GOOD | {"severity": False}, "severity: belongs to NOT_MET"),
        (GOOD | {"summary": {}}, "summary: must be a text"),
        (GOOD | {"citations": {}}, "citations: must be a list"),
        (GOOD | {"citations": [[]]}, "citations: each names a path"),
        (GOOD | {"citations": [CITATION | {"startLine": True}]}, "citations: startLine and endLine"),
        (GOOD | {"citations": [CITATION | {"endLine": 10**400}]}, "citations: startLine and endLine"),
        (GOOD | {"citations": [CITATION | {"quote": None}]}, "citations: quote is a text"),
    ],
)
async def test_malformed_observations(observation: Any, reason: str) -> None:
    """Each is refused by itself with its reason, and a good one beside it is admitted."""
    async with calling() as caller:
        await caller.next()
        answer = (await caller.post("runtime/observations", {"observations": [observation, GOOD]})).json()
        assert [one["index"] for one in answer["admitted"]] == [1]
        assert answer["refused"][0]["reason"].startswith(reason)
        await serves(caller)


async def test_only_known_fields_are_kept() -> None:
    """What an observation holds besides is dropped, however deep it is, and changes neither id nor digest."""
    async with calling() as caller:
        await caller.next()
        plain = (await caller.post("runtime/observations", {"observations": [GOOD]})).json()
        nested: Any = []
        for _ in range(900):
            nested = [nested]
        more = GOOD | {"more": nested, "citations": []}
        assert (await caller.post("runtime/observations", {"observations": [more]})).json() == plain
        state = (await caller.http.get("/stub/state")).json()
        assert state["admissions"][0]["observations"] == [GOOD | {"id": plain["admitted"][0]["id"]}]


async def test_ten_thousand_observations() -> None:
    """They are judged in no time; more than that are refused together."""
    async with calling() as caller:
        await caller.next()
        many = [GOOD | {"practiceSlug": f"p{number}"} for number in range(10_000)]
        with anyio.fail_after(5):
            answer = await caller.post("runtime/observations", {"observations": many})
        assert len(answer.json()["admitted"]) == 10_000
        answer = await caller.post("runtime/observations", {"observations": [*many, GOOD]})
        assert (answer.status_code, code_of(answer)) == (400, "invalid_request")
        await serves(caller)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
FIELDS = [
    *("observations", "practiceSlug", "outcome", "severity", "summary", "citations", "path", "startLine"),
    *("kinds", "driver", "exit", "reason", "answer", "model", "input", "messages", "role", "content", "type"),
    *("text", "tools", "function", "name", "stream", "system", "instructions", "stream_options"),
]
MESSAGES = st.recursive(
    JSON,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6),
    max_leaves=20,
)
BODIES = st.binary(max_size=60) | MESSAGES.map(lambda value: json.dumps(value).encode())
PLACES = st.sampled_from(
    [
        "next",
        *(f"runs/run-1/{call}" for call in ("runtime/observations", "end")),
        *(f"model/v1/{call}" for call in ("responses", "chat/completions", "messages", "messages/count_tokens")),
    ]
)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(st.tuples(PLACES, BODIES), min_size=5, max_size=20))
async def test_no_body_makes_the_stub_fail(calls: list[tuple[str, bytes]]) -> None:
    """Whatever a body holds, the answer is a success or a problem document, and never the stub's own fault."""
    async with calling({"run": {"attempts": 1000, "retry_seconds": 0}}) as caller:
        await caller.next()
        for place, body in calls:
            answer = await caller.http.post(f"{P}/{place}", headers=caller.claim_headers, content=body)
            assert answer.status_code in (200, 204) or code_of(answer) in ("invalid_request", "stale_claim")
        assert caller.stub.state.journal.named("request.failed") == []
        assert (await caller.http.get("/stub/state")).status_code == 200


@pytest.mark.parametrize(("call", "limit"), [("next", 16), ("runs/run-1/end", 16), ("runs/run-1/runtime/result", 64)])
async def test_a_body_that_is_too_large(call: str, limit: int) -> None:
    """It is refused with 413 once it is over its bound, and nothing of it is kept."""

    async def body() -> Any:
        for _ in range(limit + 1):
            yield b"x" * MIB

    async with calling() as caller:
        await caller.next()
        answer = await caller.http.post(f"{P}/{call}", headers=caller.claim_headers, content=body())
        assert (answer.status_code, code_of(answer)) == (413, "body_too_large")
        await serves(caller)


async def test_a_body_that_does_not_come() -> None:
    """A caller that stops in the middle of its body is answered 408, and its connection is closed."""
    scenario = parse_scenario({"workspace": {"directory": TREE}})
    async with running_stub(scenario, patience=Patience(body=0.1)) as stub:
        port = int(stub.url.rpartition(":")[2])
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            head = (
                f"POST {P}/next HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {stub.token}\r\ncontent-length: 9\r\n\r\n"
            )
            await stream.send(head.encode() + b"{")
            received = await everything(stream)
        assert received.startswith(b"HTTP/1.1 408")
        assert b'"code": "body_too_slow"' in received
        assert stub.state.runs.get("run-1").epoch == 0


async def everything(stream: SocketStream) -> bytes:
    received = b""
    try:
        while True:
            received += await stream.receive()
    except anyio.EndOfStream:
        return received


@pytest.mark.parametrize(
    "line", [b"POST /x", b"\xff\xfe\x00", b"GET http://[ HTTP/1.1", b"GET " + b"a" * 70_000 + b" HTTP/1.1"]
)
async def test_what_is_no_request(line: bytes) -> None:
    """Noise is refused, and the next connection is served."""
    async with calling() as caller:
        await caller.next()
        port = int(caller.stub.url.rpartition(":")[2])
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(line + b"\r\nhost: x\r\n\r\n")
            assert (await everything(stream)).startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))
        await serves(caller)


@pytest.mark.parametrize("status", [304, 301, 404, 599])
async def test_any_status_can_be_a_fault(status: int) -> None:
    """Also one whose answers have no body (RFC 9110, 15.4.5)."""
    async with calling(fault("next", "status", status=status)) as caller:
        assert (await caller.next()).status_code == status
        assert (await caller.next()).status_code == 200


async def test_the_journal_keeps_no_long_names() -> None:
    """A caller cannot fill the memory of the stub through what is written down of each call."""
    async with calling() as caller:
        await caller.http.get("/" + "x" * 60_000)
        assert len(caller.stub.state.journal.named("request.refused")[-1].fields["path"]) == 200
