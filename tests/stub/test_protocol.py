"""Each call of the protocol over a real socket, without faults."""

from datetime import datetime
from pathlib import Path

import anyio
import pytest

from driver.gateway.wire import Admission, Claim, Context, EndResult, Lease, Runtime
from driver.stub.runs import State
from tests.stub.support import EXAMPLE, FakeTime, P, calling, code_of, digest_of

pytestmark = pytest.mark.anyio

OBSERVATION = {
    "practiceSlug": "no-open-ends",
    "outcome": "NOT_MET",
    "severity": "MINOR",
    "summary": "An open end.",
    "citations": [{"path": "repos/reviewed/a.py", "startLine": 3, "endLine": 4, "quote": "x"}],
}


async def test_a_whole_run() -> None:
    """From the pull to the end every call answers as the protocol says, in the gateway's clock."""
    time = FakeTime()
    async with calling({"run": {"lease_seconds": 30, "deadline_seconds": 90}}, now=time) as caller:
        claim = Claim.model_validate_json((await caller.next()).content)
        assert (claim.run.id, claim.run.kind, claim.run.subject) == ("run-1", "REVIEW", "review:1")
        assert (claim.run.epoch, claim.run.attempt) == (1, 0)
        assert (claim.now, claim.lease_seconds, claim.deadline_seconds) == (time.moment, 30, 90)
        time.advance(10)
        lease = Lease.model_validate_json((await caller.post("renew")).content)
        assert (lease.now, lease.lease_seconds, lease.deadline_seconds) == (time.moment, 30, 80)
        context = await caller.get("context")
        assert context.json()["task"] == "task.json"
        assert Context.model_validate_json(context.content).model.wire == "responses"
        runtime = Runtime.model_validate_json((await caller.get("runtime")).content)
        workspace = await caller.get("runtime/workspace")
        assert workspace.headers["content-type"] == "application/x-tar"
        assert len(workspace.content) == runtime.workspace_bytes == int(workspace.headers["content-length"])
        assert runtime.workspace_digest == workspace.headers["repr-digest"] == digest_of(workspace.content)
        result = await caller.result(b"archive", exit=3)
        assert (result.status_code, result.headers["etag"]) == (204, f'"{digest_of(b"archive")}"')
        assert "content-length" not in result.headers
        ended = await caller.post("end", {"outcome": "COMPLETED", "exit": 3})
        assert EndResult.model_validate_json(ended.content).result == "ENDED"
        assert (await caller.next()).status_code == 204
        kept = await caller.http.get("/stub/results/run-1")
        assert (kept.content, kept.headers["x-agent-exit"]) == (b"archive", "3")


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer nonsense", "Basic eDp5"])
async def test_without_the_token_nothing_is_answered(authorization: str) -> None:
    """Every call without an accepted token reads 401."""
    async with calling() as caller:
        headers = {"authorization": authorization}
        answer = await caller.http.post(f"{P}/next", json={"kinds": [], "driver": "x"}, headers=headers)
        assert (answer.status_code, code_of(answer)) == (401, "token_not_accepted")


async def test_another_subjects_run_is_refused_as_the_token() -> None:
    """A run of another subject reads 401, whatever its epoch."""
    runs = [{"subject": "review:1"}, {"subject": "review:2", "id": "theirs"}]
    async with calling({"run": runs}) as caller:
        await caller.next()
        caller.run = "theirs"
        assert (await caller.post("renew")).status_code == 401
        assert (await caller.post("end", {"outcome": "COMPLETED"})).status_code == 401


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("POST", "renew"),
        ("GET", "context"),
        ("GET", "runtime"),
        ("GET", "runtime/workspace"),
        ("POST", "runtime/observations"),
        ("POST", "runtime/result"),
        ("POST", "end"),
    ],
)
async def test_a_stale_claim_is_fenced_everywhere(method: str, call: str) -> None:
    """A claim that was taken away reads 409 without an ETag in each call about the run."""
    async with calling() as caller:
        await caller.next()
        caller.stub.state.runs.take_away("run-1")
        headers = caller.claim_headers | {"content-digest": digest_of(b"{}"), "x-agent-exit": "0"}
        body = b'{"outcome": "COMPLETED"}' if call == "end" else b"{}"
        answer = await caller.http.request(method, f"{P}/runs/run-1/{call}", headers=headers, content=body)
        assert (answer.status_code, code_of(answer)) == (409, "stale_claim")
        assert "etag" not in answer.headers


async def test_an_expired_lease_is_fenced() -> None:
    """A lease whose time has passed cannot be renewed, and the run goes back with an attempt spent."""
    time = FakeTime()
    async with calling(now=time) as caller:
        await caller.next()
        time.advance(60)
        assert (await caller.post("renew")).status_code == 409
        claim = (await caller.next()).json()
        assert (claim["run"]["epoch"], claim["run"]["attempt"]) == (2, 1)


async def test_a_pull_is_held_until_there_is_a_run() -> None:
    """`Prefer: wait` holds the pull, and a run that comes back answers it."""
    async with calling() as caller:
        await caller.next()
        pulled: list[int] = []

        async def pull() -> None:
            pulled.append((await caller.next(wait=20)).json()["run"]["epoch"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pull)
            await caller.stub.wait_for_event("request.received", call="next", nth=2)
            assert pulled == []
            caller.stub.state.runs.take_away("run-1")
        assert pulled == [2]


async def test_a_held_pull_is_answered_when_its_time_is_over() -> None:
    """`Prefer: wait=1` with no work reads 204 after that second."""
    async with calling() as caller:
        await caller.next()
        with anyio.fail_after(5):
            assert (await caller.next(wait=1)).status_code == 204


async def test_a_held_pull_that_nobody_waits_for_leases_nothing() -> None:
    """A client that goes away while its pull is held gets no run."""
    async with calling() as caller:
        await caller.next()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(caller.next, 20)
            await caller.stub.wait_for_event("request.received", call="next", nth=2)
            tasks.cancel_scope.cancel()
        await caller.stub.wait_for_event("request.abandoned")
        caller.stub.state.runs.take_away("run-1")
        await anyio.wait_all_tasks_blocked()
        assert next(iter(caller.stub.state.runs)).state is State.QUEUED


async def test_no_work_tells_when_there_will_be_some() -> None:
    """A run that waits for its retry is told in Retry-After, and a held pull gets it then."""
    async with calling({"run": {"retry_seconds": 0.4}}) as caller:
        await caller.next()
        await caller.post("end", {"outcome": "FAILED", "exit": 1, "reason": "no output"})
        answer = await caller.next()
        assert (answer.status_code, answer.headers["retry-after"]) == (204, "1")
        assert (await caller.next(wait=5)).json()["run"] == {
            "id": "run-1",
            "kind": "REVIEW",
            "subject": "review:1",
            "epoch": 2,
            "attempt": 1,
        }


@pytest.mark.parametrize(
    ("outcome", "state", "attempt"),
    [
        ("COMPLETED", State.ENDED, 0),
        ("FAILED", State.QUEUED, 1),
        ("INTERRUPTED", State.QUEUED, 0),
        ("UNISOLATED", State.QUEUED, 0),
        ("UNSUPPORTED", State.QUEUED, 0),
    ],
)
async def test_what_each_outcome_does(outcome: str, state: State, attempt: int) -> None:
    """Each outcome ends the run or hands it on, and only FAILED spends an attempt."""
    async with calling() as caller:
        await caller.next()
        assert (await caller.post("end", {"outcome": outcome})).json()["result"] == "ENDED"
        run = next(iter(caller.stub.state.runs))
        assert (run.state, run.attempt, run.epoch) == (state, attempt, 1)
        # An unisolated sandbox is taken back in the same step.
        again = await caller.post("end", {"outcome": outcome})
        assert again.status_code == (401 if outcome == "UNISOLATED" else 200)
        if again.status_code == 200:
            assert again.json()["result"] == "ALREADY_ENDED"


async def test_erased_work_is_not_tried_again() -> None:
    """A run that failed because its work was erased ends, whatever attempts are left."""
    async with calling() as caller:
        await caller.next()
        await caller.post("end", {"outcome": "FAILED", "reason": "erased"})
        await caller.stub.wait_ended()


async def test_a_result_is_kept_once() -> None:
    """The second upload of a claim reads 409 with the first one's ETag, whatever it brings."""
    async with calling() as caller:
        await caller.next()
        first = await caller.result(b"first")
        second = await caller.result(b"second", exit=1)
        assert (second.status_code, code_of(second)) == (409, "result_kept")
        assert second.headers["etag"] == first.headers["etag"] == f'"{digest_of(b"first")}"'
        assert [result.body for result in caller.stub.state.results] == [b"first"]


async def test_the_next_claim_delivers_its_own_result(tmp_path: Path) -> None:
    """A claim after an interrupted one uploads its own result; both are kept, also on disk."""
    async with calling(results=tmp_path / "kept") as caller:
        for body in (b"half", b"whole"):
            await caller.next()
            assert (await caller.result(body, exit=0 if body == b"whole" else 143)).status_code == 204
            await caller.post("end", {"outcome": "INTERRUPTED"})
        assert (await caller.http.get("/stub/results/run-1")).content == b"whole"
    assert (tmp_path / "kept" / "run-1-1.tar").read_bytes() == b"half"
    assert (tmp_path / "kept" / "run-1-2.tar").read_bytes() == b"whole"
    assert '"exit": 143' in (tmp_path / "kept" / "run-1-1.json").read_text()


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"content-digest": digest_of(b"other"), "x-agent-exit": "0"}, 400, "content_digest_mismatch"),
        ({"x-agent-exit": "0"}, 400, "content_digest_missing"),
        ({"content-digest": digest_of(b"body")}, 400, "exit_missing"),
        ({"content-digest": digest_of(b"body"), "x-agent-exit": "-1"}, 400, "exit_missing"),
    ],
)
async def test_a_result_that_is_not_what_it_says_is_not_kept(headers: dict[str, str], status: int, code: str) -> None:
    """Digest and exit are required, and the digest must be the body's."""
    async with calling() as caller:
        await caller.next()
        url = f"{P}/runs/run-1/runtime/result"
        answer = await caller.http.post(url, headers=caller.claim_headers | headers, content=b"body")
        assert (answer.status_code, code_of(answer)) == (status, code)
        assert list(caller.stub.state.results) == []


async def test_admission_judges_each_observation() -> None:
    """Each observation is admitted with an id or refused with its reason; a repeat reads the same."""
    async with calling(EXAMPLE) as caller:
        await caller.next()
        wrong = [
            {**OBSERVATION, "practiceSlug": "unheard-of"},
            {**OBSERVATION, "practiceSlug": "tests-come-along", "severity": None},
            {**OBSERVATION, "practiceSlug": "tests-come-along", "outcome": "MAYBE"},
            {
                **OBSERVATION,
                "practiceSlug": "tests-come-along",
                "citations": [{"path": "a", "startLine": 0, "endLine": 1}],
            },
            "text",
        ]
        message = {"observations": [OBSERVATION, *wrong, OBSERVATION]}
        answer = await caller.post("runtime/observations", message)
        admission = Admission.model_validate_json(answer.content)
        assert [admitted.index for admitted in admission.admitted] == [0]
        assert [(r.index, r.reason.split(":")[0]) for r in admission.refused] == [
            (1, "practiceSlug"),
            (2, "severity"),
            (3, "outcome"),
            (4, "citations"),
            (5, "an observation is an object"),
            (6, "practiceSlug"),
        ]
        assert (await caller.post("runtime/observations", message)).content == answer.content


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/internal/agent/nothing", "GET", 404),
        ("/internal/agent/next", "GET", 405),
        ("/internal/agent/runs/run-1/renew", "GET", 405),
        ("/internal/agent/model/v1/embeddings", "POST", 404),
        ("/elsewhere", "GET", 404),
        ("/stub/nothing", "GET", 404),
        ("/stub/state", "POST", 405),
        ("/stub/results/run-1", "GET", 404),
    ],
)
async def test_what_is_not_there(path: str, method: str, status: int) -> None:
    """Unknown calls and wrong methods are told apart, as problem documents."""
    async with calling() as caller:
        answer = await caller.http.request(method, path, headers=caller.claim_headers)
        assert answer.status_code == status
        assert code_of(answer)


@pytest.mark.parametrize("headers", [{}, {"x-agent-run": "run-1"}, {"x-agent-run": "run-1", "x-agent-epoch": "one"}])
async def test_the_claim_must_be_named(headers: dict[str, str]) -> None:
    """A call about a run without its claim headers reads 400."""
    async with calling() as caller:
        await caller.next()
        answer = await caller.http.post(f"{P}/runs/run-1/renew", headers=headers, json={})
        assert (answer.status_code, code_of(answer)) == (400, "claim_headers_missing")


async def test_a_wrong_message_names_the_field() -> None:
    """A body with a wrong field reads 400 and says which."""
    async with calling() as caller:
        await caller.next()
        answer = await caller.post("end", {"outcome": "DONE"})
        assert answer.status_code == 400
        assert "outcome" in answer.json()["detail"]


async def test_the_unknown_kind_is_offered_where_the_gateway_is_out_of_step() -> None:
    """A kind that the pull does not name is offered only if the scenario says that the sandbox drives it."""
    run = {"kind": "MYSTERY"}
    async with calling({"run": run}) as caller:
        assert (await caller.next()).status_code == 204
    async with calling({"run": run, "sandbox": {"drives": ["MYSTERY"]}}) as caller:
        assert (await caller.next()).json()["run"]["kind"] == "MYSTERY"
        assert "task" not in (await caller.get("context")).json()


async def test_the_state_is_shown_without_the_token() -> None:
    """`/stub/state` needs no token and shows none."""
    async with calling() as caller:
        await caller.next()
        state = await caller.http.get("/stub/state", headers={"authorization": ""})
        assert state.json()["runs"][0]["state"] == "LEASED"
        assert datetime.fromisoformat(state.json()["now"]).tzinfo is not None
        assert caller.stub.token not in state.text


async def test_the_events_are_followed_live() -> None:
    """`/stub/events` sends what happened and goes on with what happens."""
    async with calling() as caller:
        await caller.next()
        names: list[str] = []
        async with caller.http.stream("GET", "/stub/events") as events:
            async for line in events.aiter_lines():
                assert caller.stub.token not in line
                if line.startswith("event: "):
                    names.append(line.removeprefix("event: "))
                if names[-1:] == ["run.leased"]:
                    caller.stub.state.runs.take_away("run-1")
                if names[-1:] == ["run.requeued"]:
                    break
        assert names[:3] == ["run.queued", "sandbox.requested", "sandbox.ready"]
