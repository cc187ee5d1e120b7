"""Every call with every fault, on virtual time: what the driver makes of it stands in docs/faults.md."""

from pathlib import Path

import anyio
import httpx
import pytest

from driver.gateway.wire import End
from driver.kind import HeldRun, Outcome
from tests.driver.holding import Bench
from tests.driver.memory_gateway import Fault, Serve, body, late, lost_reply, status, swallowed, unreachable
from tests.virtual_time import BACKEND

pytestmark = pytest.mark.anyio

DOCS = Path(__file__).parents[2] / "docs" / "faults.md"
CALLS = ("next", "context", "runtime", "renew", "result", "end")
DATE = "Mon, 01 Jan 2024 10:00:00 GMT"
HUGE = b'"' + b"x" * (5 * 1024 * 1024) + b'"'


async def reset_before(_: Serve) -> httpx.Response:
    """The connection breaks before the gateway has seen the request."""
    raise httpx.WriteError("reset")


async def cut(serve: Serve) -> httpx.Response:
    """Half of the body arrives, as if it were all."""
    response = await serve()
    return httpx.Response(response.status_code, content=response.content[: len(response.content) // 2])


FAULTS: dict[str, Fault] = {
    "connection refused": unreachable,
    "reset before it is served": reset_before,
    "reply lost after it was served": lost_reply,
    "no answer at all": swallowed,
    "answer after 8 s": late(8),
    "body cut": cut,
    "body is garbage": body(b"<html>"),
    "body of another type": body(b"[1]"),
    "body of 5 MiB": body(HUGE),
    "`400`": status(400),
    "`401`": status(401),
    "`403`": status(403),
    "`404`": status(404),
    "`408`": status(408),
    "`409`": status(409),
    "`410`": status(410),
    "`413`": status(413),
    "`422`": status(422),
    "`429`": status(429),
    "`429`, `Retry-After: 5`": status(429, retry_after="5"),
    "`429`, `Retry-After` as a date 5 s ahead": status(429, date=DATE, retry_after=DATE.replace(":00 GMT", ":05 GMT")),
    "`429`, `Retry-After` in the past": status(429, date=DATE, retry_after=DATE.replace("2024", "2001")),
    "`503`, `Retry-After: 86400`": status(503, retry_after="86400"),
    "`503`, `Retry-After: soon`": status(503, retry_after="soon"),
    "`500`": status(500),
    "`502`": status(502),
    "`504`": status(504),
    "`302`": status(302, location="http://10.0.0.8/"),
}


@pytest.fixture
def anyio_backend() -> object:
    return BACKEND


async def made_of(call: str, fault: Fault, directory: Path) -> str:
    """What the driver does about a fault of the first call of that name, in a run of 50 s with a lease of 60 s."""

    async def work(held: HeldRun) -> Outcome:
        with held.work():
            await anyio.sleep(50)
        await held.results.deliver(0)
        return Outcome("COMPLETED", exit=0)

    bench = Bench(directory, work, run={"kind": "WORK", "attempts": 1, "deadline_seconds": 900})
    bench.gateway.faults[call, 1] = fault
    codes: list[int] = []
    async with anyio.create_task_group() as tasks:

        async def loop() -> None:
            codes.append(await bench.loop())
            tasks.cancel_scope.cancel("the driver has exited")

        tasks.start_soon(loop)
        while bench.gateway.run.state != "ENDED":
            await bench.clock.sleep(1.0)
        await bench.clock.sleep(15.0)
        bench.stop.ask()
    return _said(bench, call, codes)


def _said(bench: Bench, call: str, codes: list[int]) -> str:
    ends = [_told(end) for end in bench.gateway.ends]
    if codes != [0]:
        return f"exits {codes}"
    if bench.stop.asked and ends == ["COMPLETED"]:
        seen = bench.gateway.calls(call)
        gap = seen[1].at - seen[0].at if len(seen) > 1 else 0.0
        return ("again, later" if 5 <= gap < 6 else "again") if _repeated(bench, call) else "fine"
    told = f"ends {ends[0]}" if ends else "tells nothing"
    return told if bench.stop.asked else f"{told}, exits 0"


def _repeated(bench: Bench, call: str) -> bool:
    """Whether the driver took it for a failure, and tried again."""
    failed = bench.named({"next": "pull.failed", "renew": "lease.renewal_failed"}.get(call, "gateway.call_failed"))
    return bool(failed) or bool(bench.named("pull.refused"))


def _told(end: End) -> str:
    return end.outcome if end.exit in (None, 0) else f"{end.outcome} {end.exit}"


async def matrix(directory: Path) -> list[str]:
    """The table as it stands in the docs."""
    lines = [f"| | {' | '.join(f'`{call}`' for call in CALLS)} |", f"|---|{'---|' * len(CALLS)}"]
    for name, fault in FAULTS.items():
        lines.append(f"| {name} | {' | '.join([await made_of(call, fault, directory) for call in CALLS])} |")
    return lines


async def test_the_docs_show_what_the_driver_does(tmp_path: Path) -> None:
    """Each cell of the table in docs/faults.md is what happens."""
    documented = [line for line in DOCS.read_text("utf-8").splitlines() if line.startswith("|")]
    assert await matrix(tmp_path) == documented
