"""A stub with a state file that is started again goes on where the one before it was."""

import os
import resource
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from driver.stub.errors import StateError
from driver.stub.scenario import parse_scenario
from driver.stub.server import running_stub
from tests.stub.support import TREE, Caller, P, code_of, digest_of, fault, on_stub

pytestmark = pytest.mark.anyio

RESULT = b"a result" * 20_000
# With half of a character in it, as a program may send.
OBSERVATIONS = (
    rb'{"observations": [{"practiceSlug": "tests-come-along", "outcome": "MET", "summary": "\ud800", "citations": []}]}'
)


@asynccontextmanager
async def calling(file: Path, scenario: dict[str, Any] | None = None) -> AsyncIterator[Caller]:
    """A caller of a stub whose state is in a file."""
    parsed = parse_scenario({"workspace": {"directory": TREE}, **(scenario or {})})
    async with running_stub(parsed, state_file=file) as stub, on_stub(stub) as caller:
        yield caller


async def test_a_claim_outlives_the_stub(tmp_path: Path) -> None:
    """Token, epoch and lease hold over a restart, and each call that was answered stays done, once."""
    state = tmp_path / "state"
    async with calling(state) as before:
        claim = (await before.next()).json()
        assert (await before.result(RESULT, exit=3)).status_code == 204
    async with calling(state) as after:
        assert after.stub.token == before.stub.token
        lease = (await after.post("renew")).json()
        assert lease["deadline"] == claim["deadline"]
        repeated = await after.result(RESULT, exit=3)
        assert (repeated.status_code, repeated.headers["etag"]) == (409, f'"{digest_of(RESULT)}"')
        assert (await after.http.get("/stub/results/run-1")).content == RESULT
        assert (await after.post("end", {"outcome": "COMPLETED", "exit": 3})).json()["result"] == "ENDED"
    async with calling(state) as last:
        assert (await last.post("end", {"outcome": "COMPLETED", "exit": 3})).json()["result"] == "ALREADY_ENDED"
        shown = (await last.http.get("/stub/state")).json()
        assert [(end["epoch"], end["outcome"], end["exit"]) for end in shown["ends"]] == [(1, "COMPLETED", 3)]
        assert [result["exit"] for result in shown["results"]] == [3]
        assert code_of(await last.post("renew")) == "stale_claim"


async def test_a_sandbox_that_was_taken_back_stays_so(tmp_path: Path) -> None:
    """What a fault did to the state is kept, also where its call was refused."""
    scenario = fault("renew", "revoke")
    async with calling(tmp_path / "state", scenario) as before:
        await before.next()
        assert code_of(await before.post("renew")) == "token_not_accepted"
        old = before.stub.token
    async with calling(tmp_path / "state", scenario) as after:
        after.http.headers["authorization"] = f"Bearer {old}"
        assert code_of(await after.next()) == "token_not_accepted"


async def test_a_fault_strikes_once(tmp_path: Path) -> None:
    """The calls at a place are counted on."""
    scenario = fault("renew", "status", nth=2, status=503)
    async with calling(tmp_path / "state", scenario) as before:
        await before.next()
        assert (await before.post("renew")).status_code == 200
    async with calling(tmp_path / "state", scenario) as after:
        assert [(await after.post("renew")).status_code for _ in range(2)] == [503, 200]


async def test_what_was_admitted_is_composed_after_a_restart(tmp_path: Path) -> None:
    """Admitted observations, and the composition that follows them, are kept."""
    scenario = {"run": {"compose": True}, "workspace": {}}
    async with calling(tmp_path / "state", scenario) as before:
        await before.next()
        path = f"{P}/runs/run-1/runtime/observations"
        answer = await before.http.post(path, headers=before.claim_headers, content=OBSERVATIONS)
        assert len(answer.json()["admitted"]) == 1
    async with calling(tmp_path / "state", scenario) as ending:
        await ending.post("end", {"outcome": "COMPLETED", "exit": 0})
    async with calling(tmp_path / "state", scenario) as after:
        claim = (await after.next(kinds=("REVIEW_COMPOSE",))).json()
        assert (claim["run"]["id"], claim["run"]["epoch"]) == ("run-1-compose", 2)
        assert (await after.get("context")).json()["observations"][0]["practiceSlug"] == "tests-come-along"


async def test_withdrawn_for_good(tmp_path: Path) -> None:
    """An admission that was withdrawn stays so."""
    scenario = {"run": {"kind": "DIGEST"}, **fault("renew", "withdraw")}
    async with calling(tmp_path / "state", scenario) as before:
        await before.next(kinds=("DIGEST",))
        await before.post("renew")
    async with calling(tmp_path / "state", scenario) as after:
        assert code_of(await after.get("context")) == "digest_not_admitted"


async def test_nothing_is_acknowledged_that_is_not_on_the_disk(tmp_path: Path) -> None:
    """Where there is no room the call is refused; it is taken once there is, and kept."""
    async with calling(tmp_path / "state") as before:
        await before.next()
        with no_file_longer_than(96 * 1024):
            assert (await before.result(RESULT)).status_code == 500
            assert (await before.result(RESULT)).status_code == 500
        assert (await before.result(RESULT)).status_code == 409
    async with calling(tmp_path / "state") as after:
        assert (await after.http.get("/stub/results/run-1")).content == RESULT


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """Writes of this process past that length fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_one_stub_at_a_time(tmp_path: Path) -> None:
    """A file that another stub has open is refused, before anything is served."""
    async with calling(tmp_path / "state"):
        with pytest.raises(StateError, match="another stub has it open"):
            await opened(tmp_path / "state")


async def test_another_scenario(tmp_path: Path) -> None:
    """The state of another scenario, or of another workspace, is refused and left as it is."""
    async with calling(tmp_path / "state") as before:
        await before.next()
    others: list[dict[str, Any]] = [{"run": {"lease_seconds": 7}}, {"workspace": {}}]
    for other in others:
        with pytest.raises(StateError, match="another scenario or workspace"):
            await opened(tmp_path / "state", other)
    async with calling(tmp_path / "state") as after:
        assert (await after.post("renew")).status_code == 200


def is_text(path: Path) -> None:
    path.write_text("no database " * 100)


def is_a_directory(path: Path) -> None:
    path.mkdir()


def is_of_a_later_format(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("made", "complaint"),
    [(is_text, "not a database"), (is_a_directory, "Is a directory"), (is_of_a_later_format, "format 99")],
)
async def test_no_state_file(tmp_path: Path, made: Any, complaint: str) -> None:
    """What is no state file of this version is refused with its name and what is wrong."""
    made(tmp_path / "state")
    with pytest.raises(StateError, match=f"state: .*{complaint}"):
        await opened(tmp_path / "state")


async def test_garbled_state(tmp_path: Path) -> None:
    """A state that cannot be read is refused, and the message says what to do."""
    async with calling(tmp_path / "state"):
        pass
    with closing(sqlite3.connect(tmp_path / "state")) as database, database:
        database.execute("UPDATE state SET content = '{}'")
    with pytest.raises(StateError, match="cannot be read; remove it"):
        await opened(tmp_path / "state")


async def test_only_its_owner_reads_it(tmp_path: Path) -> None:
    """The key of the tokens is in it."""
    async with calling(tmp_path / "state"):
        assert os.stat(tmp_path / "state").st_mode & 0o077 == 0


async def opened(file: Path, scenario: dict[str, Any] | None = None) -> None:
    with anyio.fail_after(10):
        async with calling(file, scenario):
            pytest.fail("the stub has started")
