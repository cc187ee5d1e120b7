"""Downloading the workspace archive: resume, restart, budgets, digests."""

import json
import os
import random
from base64 import b64encode
from hashlib import sha256
from typing import Any

import anyio
import pytest

from driver.errors import (
    ArchiveRefused,
    ContractError,
    GatewayError,
    GatewayRefused,
    GatewayUnavailable,
    TransferFailed,
)
from driver.layout import Layout
from driver.log import Log, render_json
from driver.workspace.empty import empty
from driver.workspace.fetch import Fetch, Promise
from tests.driver.workspace.archives import END, block, file, pax, record, tree, with_writable
from tests.driver.workspace.source import Answer, HandClock, Source

pytestmark = pytest.mark.anyio

CONTENT: dict[str, bytes | None] = {"a": None, "a/one": b"1" * 5000, "two": b"2" * 3000}
ARCHIVE = file(b"a/one", b"1" * 5000) + file(b"two", b"2" * 3000) + END


def field(data: bytes) -> str:
    """The digest of `data` as HTTP writes it."""
    return f"sha-256=:{b64encode(sha256(data).digest()).decode()}:"


class Case:
    """One download with a clock of its own, whose log can be read."""

    def __init__(self, layout: Layout, source: Source, *, most: int = 1_000_000, digest: str = field(ARCHIVE)) -> None:
        self.layout = layout
        self.clock = HandClock()
        self.lines: list[str] = []
        log = Log(self.lines.append, render=render_json, wall=self.clock.wall)
        promise = Promise(most, digest)
        self.fetch = Fetch(layout, promise, source, log=log, clock=self.clock, pauses=lambda tries: tries / 10)

    def events(self) -> list[dict[str, Any]]:
        """What was logged, without time and level."""
        keep: list[dict[str, Any]] = [json.loads(line) for line in self.lines]
        return [{k: v for k, v in line.items() if k not in ("time", "level")} for line in keep]


async def test_unpacks_and_says_so(layout: Layout) -> None:
    """A clean transfer asks once, without a range, and logs what came."""
    source = Source([Answer(ARCHIVE, digest=field(ARCHIVE))])
    case = Case(layout, source)
    await case.fetch.run()
    assert tree(layout.root) == with_writable(CONTENT)
    assert source.asked == [(0, None)]
    assert case.events() == [{"event": "workspace.unpacked", "bytes": len(ARCHIVE), "files": 2, "seconds": 0.0}]
    empty(layout.root)


@pytest.mark.parametrize("stop", [1, 511, 512, 513, 3000, 5631, 5632, len(ARCHIVE) - 1, len(ARCHIVE) - 1024])
@pytest.mark.parametrize("short", [False, True])
async def test_resumes_where_it_stopped(layout: Layout, stop: int, short: bool) -> None:
    """A transfer that breaks, or ends short, goes on at the next byte of the same archive."""
    source = Source([Answer(ARCHIVE, stop=stop, short=short), Answer(ARCHIVE)])
    case = Case(layout, source)
    await case.fetch.run()
    assert source.asked == [(0, None), (stop, '"one"')]
    assert tree(layout.root) == with_writable(CONTENT)
    assert [event["event"] for event in case.events()] == ["workspace.interrupted", "workspace.unpacked"]


async def test_resumes_again_and_again(layout: Layout) -> None:
    """Every try that brings something starts the count of idle tries and the back-off anew."""
    stops = list(range(600, len(ARCHIVE), 300))
    source = Source([*(Answer(ARCHIVE, stop=stop) for stop in stops), Answer(ARCHIVE)])
    case = Case(layout, source)
    await case.fetch.run()
    assert source.asked == [(0, None), *((stop, '"one"') for stop in stops)]
    assert set(case.clock.slept) == {0.1}
    assert tree(layout.root) == with_writable(CONTENT)


async def test_a_break_after_the_last_byte_is_none(layout: Layout) -> None:
    """When everything is there nobody is asked again."""
    source = Source([Answer(ARCHIVE, stop=len(ARCHIVE))])
    await Case(layout, source).fetch.run()
    assert len(source.asked) == 1


@pytest.mark.parametrize("second", [Answer(ARCHIVE, resumes=False), Answer(ARCHIVE, etag='"two"')])
async def test_starts_at_zero_where_it_cannot_resume(layout: Layout, second: Answer) -> None:
    """A gateway that cannot resume, or has another archive by now, sends all of it: nothing of the first is left."""
    other = file(b"left-behind", b"x") + file(b"rest", b"y" * 9000) + END
    source = Source([Answer(other, stop=4000), second])
    case = Case(layout, source)
    await case.fetch.run()
    assert source.asked == [(0, None), (4000, '"one"')]
    assert tree(layout.root) == with_writable(CONTENT)
    assert "workspace.restarted" in [event["event"] for event in case.events()]


async def test_another_archive_from_the_middle(layout: Layout) -> None:
    """The rest of another archive is not joined to the first: the next try starts at zero."""
    source = Source([Answer(ARCHIVE, stop=4000), Answer(ARCHIVE, etag='"two"', offset=4000), Answer(ARCHIVE)])
    await Case(layout, source).fetch.run()
    assert source.asked == [(0, None), (4000, '"one"'), (0, None)]
    assert tree(layout.root) == with_writable(CONTENT)


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
async def test_without_a_strong_etag_it_starts_at_zero(layout: Layout, etag: str | None) -> None:
    """Without a strong ETag the rest could be of another archive, so it is not asked for."""
    source = Source([Answer(ARCHIVE, etag=etag, stop=4000), Answer(ARCHIVE, etag=etag)])
    await Case(layout, source).fetch.run()
    assert source.asked == [(0, None), (0, None)]
    assert tree(layout.root) == with_writable(CONTENT)


async def test_an_unknown_length_ends_with_the_stream(layout: Layout) -> None:
    """Where no length is told the digest decides."""
    source = Source([Answer(ARCHIVE, length=None)])
    await Case(layout, source).fetch.run()
    assert tree(layout.root) == with_writable(CONTENT)


async def test_gives_up_after_idle_tries(layout: Layout) -> None:
    """Tries that bring nothing are bounded, pause longer each time, and say how far it came."""
    source = Source([Answer(ARCHIVE, stop=4000), Answer(ARCHIVE, error=GatewayUnavailable("no route"))])
    case = Case(layout, source)
    with pytest.raises(TransferFailed, match=r"32 tries in a row brought nothing after byte 4,000 .*no route"):
        await case.fetch.run()
    assert len(source.asked) == 33
    assert case.clock.slept == [0.1, *(tries / 10 for tries in range(1, 32))]


async def test_a_gateway_that_never_gets_further(layout: Layout) -> None:
    """Starting at zero each time and breaking at the same byte is no progress."""
    source = Source([Answer(ARCHIVE, stop=4000, resumes=False)])
    with pytest.raises(TransferFailed, match="32 tries in a row brought nothing after byte 4,000"):
        await Case(layout, source).fetch.run()
    assert len(source.asked) == 33


async def test_waits_as_long_as_the_gateway_wishes(layout: Layout) -> None:
    """Retry-After is honoured."""
    source = Source([Answer(ARCHIVE, error=GatewayUnavailable("busy", retry_after=7.0)), Answer(ARCHIVE)])
    case = Case(layout, source)
    await case.fetch.run()
    assert case.clock.slept == [7.0]


async def test_a_call_that_will_never_work(layout: Layout) -> None:
    """Other gateway errors are not tried again."""
    source = Source([Answer(ARCHIVE, error=GatewayRefused("workspace", 404, None))])
    with pytest.raises(GatewayRefused):
        await Case(layout, source).fetch.run()
    assert len(source.asked) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        Answer(ARCHIVE, offset=3000),
        Answer(ARCHIVE, error=ContractError("workspace: the 206 holds another range")),
        Answer(ARCHIVE, error=GatewayRefused("workspace", 416, "range_not_satisfiable")),
    ],
)
async def test_bytes_from_somewhere_else(layout: Layout, wrong: Answer) -> None:
    """Where something else comes than the part that was asked for, the whole is asked for."""
    source = Source([Answer(ARCHIVE, stop=4000), wrong, Answer(ARCHIVE)])
    case = Case(layout, source)
    await case.fetch.run()
    assert source.asked == [(0, None), (4000, '"one"'), (0, None)]
    assert tree(layout.root) == with_writable(CONTENT)
    assert "workspace.restarted" in [event["event"] for event in case.events()]


@pytest.mark.parametrize("wrong", [ContractError("workspace: no"), GatewayRefused("workspace", 416, None)])
async def test_the_whole_is_refused(layout: Layout, wrong: GatewayError) -> None:
    """What is wrong with an answer to a call for the whole is never put down to a part."""
    source = Source([Answer(ARCHIVE, error=wrong)])
    with pytest.raises(type(wrong)):
        await Case(layout, source).fetch.run()
    assert source.asked == [(0, None)]


async def test_parts_are_never_right(layout: Layout) -> None:
    """A gateway that breaks off the whole at the same byte and never sends a part of it is given up."""
    answers = [answer for _ in range(40) for answer in (Answer(ARCHIVE, stop=4000), Answer(ARCHIVE, offset=3000))]
    with pytest.raises(TransferFailed, match="32 tries in a row brought nothing after byte 4,000"):
        await Case(layout, Source(answers)).fetch.run()


async def test_more_than_advertised(layout: Layout) -> None:
    """The budget is checked against the length at once, and against the bytes where none is told."""
    most = len(ARCHIVE) - 1
    with pytest.raises(ArchiveRefused, match="has 10,240 bytes, more than the advertised 10,239"):
        await Case(layout, Source([Answer(ARCHIVE)]), most=most).fetch.run()
    empty(layout.root)
    with pytest.raises(ArchiveRefused, match="more than the advertised 10,239 bytes"):
        await Case(layout, Source([Answer(ARCHIVE, length=None)]), most=most).fetch.run()
    empty(layout.root)
    await Case(layout, Source([Answer(ARCHIVE)]), most=len(ARCHIVE)).fetch.run()


async def test_more_than_the_digest_covers(layout: Layout) -> None:
    """Bytes past the told length are refused."""
    source = Source([Answer(ARCHIVE + bytes(512), length=len(ARCHIVE))])
    with pytest.raises(ArchiveRefused, match="goes on after the 10,240 bytes that its digest covers"):
        await Case(layout, source).fetch.run()


WRONG = file(b"a/one", b"1" * 5000) + file(b"two", b"3" * 3000) + END


@pytest.mark.parametrize("told", [None, field(WRONG), f"md5=:AAAA:, {field(WRONG)}"])
async def test_a_wrong_digest_gets_one_restart(layout: Layout, told: str | None) -> None:
    """An archive with a wrong digest is dropped and asked for once more, from zero."""
    source = Source([Answer(WRONG, digest=told), Answer(ARCHIVE)])
    case = Case(layout, source)
    await case.fetch.run()
    assert source.asked == [(0, None), (0, None)]
    assert tree(layout.root) == with_writable(CONTENT)
    assert field(WRONG) in case.events()[0]["reason"]


async def test_a_digest_that_stays_wrong(layout: Layout) -> None:
    """After the one restart it is an error that names both digests."""
    source = Source([Answer(WRONG)])
    with pytest.raises(TransferFailed) as caught:
        await Case(layout, source).fetch.run()
    assert len(source.asked) == 2
    assert field(WRONG) in str(caught.value)
    assert field(ARCHIVE) in str(caught.value)
    assert os.listdir(layout.root) == [".incoming"]


async def test_progress_at_most_every_two_seconds(layout: Layout) -> None:
    """Progress tells bytes, files and the total, at a human pace."""
    large = file(b"a", b"a" * 3_000_000) + file(b"b", b"b" * 3_000_000) + END
    source = Source([Answer(large)], chunk=2_000_000)
    case = Case(layout, source, most=10_000_000, digest=field(large))
    case.clock.now = iter(range(100)).__next__  # type: ignore[method-assign] # each look takes a second
    await case.fetch.run()
    progress = [event for event in case.events() if event["event"] == "workspace.progress"]
    assert progress == [
        {"event": "workspace.progress", "bytes": 4_000_000, "files": 1, "total": len(large)},
        {"event": "workspace.progress", "bytes": len(large), "files": 2, "total": len(large)},
    ]


async def test_small_chunks(layout: Layout) -> None:
    """Thousands of chunks, with a break among them, are one archive, and every stream that was opened is closed."""
    rng = random.Random(1)
    large = file(b"a", rng.randbytes(5_000_000)) + END
    source = Source([Answer(large, stop=3_333_333), Answer(large)], chunk=3000)
    case = Case(layout, source, most=10_000_000, digest=field(large))
    await case.fetch.run()
    assert (layout.root / "a").read_bytes() == large[512:5_000_512]
    assert source.asked == [(0, None), (3_333_333, '"one"')]
    assert source.open == 0


async def test_a_cancel_leaves_nothing_open(layout: Layout) -> None:
    """A cancel in mid-transfer closes the stream and every descriptor."""
    before = len(os.listdir("/proc/self/fd"))
    hold = anyio.Event()
    source = Source([Answer(ARCHIVE, stop=4000, hold=hold)])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Case(layout, source).fetch.run)
        while not source.open:  # noqa: ASYNC110 # the worker thread starts first
            await anyio.sleep(0.001)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert source.open == 0
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_cancel_does_not_wait_for_the_rest_of_a_piece(layout: Layout) -> None:
    """Unpacking ends at the next directory, also when the piece that is at hand would take long."""
    deep = b"/".join([b"d"] * 300)
    paths = [b"%d/%s/%d" % (number % 2, deep, number) for number in range(2000)]
    archive = b"".join(pax(record(b"path", path)) + block(b"x") for path in paths) + END
    case = Case(layout, Source([Answer(archive)], chunk=len(archive)), most=len(archive), digest=field(archive))
    first = layout.root / ".incoming" / os.fsdecode(paths[0])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(case.fetch.run)
        while not first.exists():  # noqa: ASYNC110 # a worker thread makes it
            await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    assert 1 <= len(os.listdir(first.parent)) < 1000


async def test_a_refusal_waits_for_nothing_more(layout: Layout) -> None:
    """An archive that is refused is refused at once, also while its server sends nothing more and does not end."""
    bad = file(b"../x") + END
    source = Source([Answer(bad + bytes(5000), stop=len(bad), hold=anyio.Event())])
    with anyio.fail_after(10), pytest.raises(ArchiveRefused, match=r"`\.\.` is refused"):
        await Case(layout, source, most=100_000).fetch.run()
    assert source.open == 0
