"""Each fault by name, over a real socket: what the one who calls sees, and what was done all the same."""

import time
from datetime import datetime

import anyio
import httpx
import pytest

from driver.stub.errors import ScenarioError
from driver.stub.runs import State
from driver.stub.scenario import bundled_scenarios, load_scenario, parse_scenario
from tests.stub.support import calling, code_of, digest_of, fault

pytestmark = pytest.mark.anyio


async def test_a_status_strikes_the_nth_call_only() -> None:
    """The second renewal reads the status with its Retry-After, and the others are served."""
    async with calling(fault("renew", "status", 2, status=503, retry_after=7)) as caller:
        await caller.next()
        answers = [await caller.post("renew") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 503, 200]
        assert answers[1].headers["retry-after"] == "7"


async def test_a_status_leaves_nothing_done() -> None:
    """A pull that is refused leases nothing."""
    async with calling(fault("next", "status", status=429, retry_after="Sun, 29 Nov 2026 10:00:00 GMT")) as caller:
        answer = await caller.next()
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "Sun, 29 Nov 2026 10:00:00 GMT")
        assert next(iter(caller.stub.state.runs)).state is State.QUEUED


async def test_a_fault_can_strike_every_call() -> None:
    """`every` strikes without end."""
    async with calling(fault("context", "status", "every", status=410)) as caller:
        await caller.next()
        assert [(await caller.get("context")).status_code for _ in range(3)] == [410, 410, 410]


async def test_a_delay_comes_before_the_answer() -> None:
    """A delayed call is served after its time."""
    async with calling(fault("runtime", "delay", seconds=0.2)) as caller:
        await caller.next()
        before = time.monotonic()
        assert (await caller.get("runtime")).status_code == 200
        assert time.monotonic() - before >= 0.2


async def test_a_reset_does_nothing() -> None:
    """A reset call breaks the connection before anything is done."""
    async with calling(fault("end", "reset")) as caller:
        await caller.next()
        with pytest.raises(httpx.TransportError):
            await caller.post("end", {"outcome": "COMPLETED"})
        assert next(iter(caller.stub.state.runs)).state is State.LEASED


async def test_a_lost_reply_is_done_all_the_same() -> None:
    """The first upload is kept though its answer never comes, and the repeat reads the ETag."""
    async with calling(fault("result", "lost_reply")) as caller:
        await caller.next()
        with pytest.raises(httpx.TransportError):
            await caller.result(b"archive")
        again = await caller.result(b"archive")
        assert (again.status_code, again.headers["etag"]) == (409, f'"{digest_of(b"archive")}"')


async def test_a_lost_end_reads_already_ended() -> None:
    """The end whose answer is lost was done, and the repeat says so."""
    async with calling(fault("end", "lost_reply")) as caller:
        await caller.next()
        with pytest.raises(httpx.TransportError):
            await caller.post("end", {"outcome": "COMPLETED"})
        assert (await caller.post("end", {"outcome": "COMPLETED"})).json() == {
            "result": "ALREADY_ENDED",
            "reason": None,
        }


async def test_a_cut_download_is_resumed() -> None:
    """The body ends after N bytes under the whole length; a range with If-Range brings the rest."""
    async with calling(fault("workspace", "cut_after", bytes=1000)) as caller:
        await caller.next()
        had = bytearray()
        etag = ""

        async def download() -> None:
            nonlocal etag
            path = "/internal/agent/runs/run-1/runtime/workspace"
            async with caller.http.stream("GET", path, headers=caller.claim_headers) as broken:
                etag = broken.headers["etag"]
                async for chunk in broken.aiter_raw():
                    had.extend(chunk)

        with pytest.raises(httpx.RemoteProtocolError):
            await download()
        assert len(had) == 1000
        rest = await caller.get("runtime/workspace", range="bytes=1000-", if_range=etag)
        assert rest.status_code == 206
        assert digest_of(bytes(had) + rest.content) == rest.headers["repr-digest"]


async def test_a_stalled_download_sends_its_bytes_and_no_more() -> None:
    """A stall after N bytes sends them, and then nothing until the client gives up."""
    async with calling(fault("workspace", "stall", bytes=512)) as caller:
        await caller.next()
        had = bytearray()
        with anyio.move_on_after(0.3) as scope:
            async with caller.http.stream(
                "GET", "/internal/agent/runs/run-1/runtime/workspace", headers=caller.claim_headers
            ) as stalled:
                async for chunk in stalled.aiter_raw():
                    had += chunk
        assert scope.cancelled_caught
        assert len(had) == 512
        await caller.stub.wait_for_event("request.abandoned")


async def test_a_stall_answers_nothing() -> None:
    """A stalled renewal gets no answer, and another call is served meanwhile."""
    async with calling(fault("renew", "stall")) as caller:
        await caller.next()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(caller.post, "renew")
            await caller.stub.wait_for_event("request.received", call="renew")
            assert (await caller.get("context")).status_code == 200
            tasks.cancel_scope.cancel()


async def test_a_claim_is_taken_away() -> None:
    """The struck renewal reads a lost claim, and the run can be pulled again."""
    async with calling(fault("renew", "take_away")) as caller:
        await caller.next()
        lost = await caller.post("renew")
        assert (lost.status_code, code_of(lost)) == (409, "stale_claim")
        assert "etag" not in lost.headers
        assert (await caller.next()).json()["run"]["epoch"] == 2


async def test_a_token_is_revoked() -> None:
    """The struck call and every later one read 401."""
    async with calling(fault("renew", "revoke")) as caller:
        await caller.next()
        assert (await caller.post("renew")).status_code == 401
        assert (await caller.next()).status_code == 401


async def test_a_deadline_is_moved_earlier() -> None:
    """The struck renewal already tells the new deadline."""
    async with calling(fault("renew", "deadline_in", seconds=5)) as caller:
        await caller.next()
        lease = (await caller.post("renew")).json()
        left = datetime.fromisoformat(lease["deadline"]) - datetime.fromisoformat(lease["now"])
        assert 4 < left.total_seconds() <= 5
        assert lease["leasedUntil"] == lease["deadline"]
        assert (await caller.post("renew")).json()["deadline"] == lease["deadline"]


async def test_digests_are_wrong_where_asked() -> None:
    """`wrong_digest` strikes the promise, the transfer, or the acknowledgement."""
    async with calling(fault("runtime", "wrong_digest")) as caller:
        await caller.next()
        promised = (await caller.get("runtime")).json()["workspaceDigest"]
        assert promised != (await caller.get("runtime/workspace")).headers["repr-digest"]
    async with calling(fault("workspace", "wrong_digest")) as caller:
        await caller.next()
        workspace = await caller.get("runtime/workspace")
        assert workspace.headers["repr-digest"] != digest_of(workspace.content)
    async with calling(fault("result", "wrong_digest")) as caller:
        await caller.next()
        assert (await caller.result(b"x")).headers["etag"] != f'"{digest_of(b"x")}"'
        assert (await caller.result(b"x")).headers["etag"] == f'"{digest_of(b"x")}"'


async def test_a_completion_is_refused() -> None:
    """REFUSED stores nothing and the run is over."""
    async with calling(fault("end", "refuse")) as caller:
        await caller.next()
        assert (await caller.post("end", {"outcome": "COMPLETED"})).json()["result"] == "REFUSED"
        await caller.stub.wait_ended()
        assert caller.stub.state.ends == []


async def test_model_calls_in_flight_are_limited() -> None:
    """A call past the attempt's limit reads 429 with Retry-After 1, and a slot comes back when a call ends."""
    turns = [{"text": "a", "delay_seconds": 60}]
    message = {"model": "scripted-model", "input": "hello"}
    async with calling({"model": {"in_flight": 2, "turns": turns}}) as caller:
        await caller.next()
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(caller.model, "responses", message)
            await caller.stub.wait_for(lambda: caller.stub.state.as_json()["callsInFlight"] == 2)
            refused = await caller.model("responses", message)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert code_of(refused) == "calls_in_flight"
            tasks.cancel_scope.cancel()
        await caller.stub.wait_for(lambda: caller.stub.state.as_json()["callsInFlight"] == 0)


@pytest.mark.parametrize("name", bundled_scenarios())
def test_the_bundled_scenarios_can_be_loaded(name: str) -> None:
    """Each bundled scenario is valid, and all but the clean ones and the unknown kind strike."""
    scenario = load_scenario(name)
    assert bool(scenario.fault) != (name in ("clean", "compose", "digest", "turn", "unknown-kind"))


def test_every_fault_has_a_bundled_scenario() -> None:
    """There is a scenario to see each fault."""
    assert {fault.what for name in bundled_scenarios() for fault in load_scenario(name).fault} == {
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
    }


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"run": {"lease_seconds": 0}}, "run.0.lease_seconds"),
        ({"run": {"lease_seconds": float("inf")}}, "run.0.lease_seconds"),
        ({"run": {"deadline_seconds": float("nan")}}, "run.0.deadline_seconds"),
        ({"sandbox": {"life_seconds": 1e300}}, "sandbox.life_seconds"),
        ({"run": [{"id": "run-2"}, {}]}, "two runs are called run-2"),
        ({"fault": [{"at": "next", "what": "status", "status": 503, "retry_after": "a\nb"}]}, "fault.0.retry_after"),
        ({"run": {"leese_seconds": 1}}, "run.0.leese_seconds"),
        ({"fault": [{"at": "renew", "what": "status"}]}, 'fault.0: `what = "status"` needs `status`'),
        ({"fault": [{"at": "next", "what": "take_away"}]}, "fault.0: `take_away` can strike only at"),
        ({"fault": [{"at": "renew", "what": "reset", "nth": 0}]}, "fault.0.nth"),
        ({"fault": [{"at": "nowhere", "what": "reset"}]}, "fault.0.at"),
        ({"model": {"wire": "smoke"}}, "model.wire"),
        ({"model": {"turns": [{"text": "a", "rule": "report"}]}}, "model.turns.0"),
        ({"workspace": {"repository": "x"}}, "workspace: `repository` and `range` belong together"),
        ({"workspace": {"directory": "x", "repository": "y", "range": "a..b"}}, "exclude each other"),
    ],
)
def test_a_wrong_scenario_names_the_field(data: dict[str, object], named: str) -> None:
    """The error is one line that names what is wrong."""
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(data)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
