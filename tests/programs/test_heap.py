"""The session heap."""

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinds.programs.heap import Room, SessionHeap

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024


@pytest.mark.parametrize(("total", "share"), [(10, 11), (10, 0), (0, 0), (10, -1)])
def test_a_share_must_fit(total: int, share: int) -> None:
    """A heap that could never let a session in is refused at once."""
    with pytest.raises(ValueError, match="must be above 0 and within the heap"):
        SessionHeap(total, share)


async def test_holds_85_sessions() -> None:
    """256 MiB at 3 MiB a session are 85 sessions; the next one waits until one ends."""
    heap = SessionHeap(256 * MIB, 3 * MIB)
    ended = anyio.Event()

    async def session() -> None:
        async with heap.session():
            await ended.wait()

    async with anyio.create_task_group() as tasks:
        for _ in range(90):
            tasks.start_soon(session)
        await anyio.wait_all_tasks_blocked()
        assert (heap.statistics().sessions, heap.statistics().waiting) == (85, 5)
        ended.set()
    now = heap.statistics()
    assert (now.sessions, now.waiting, now.used, now.peak_used) == (0, 0, 0, 255 * MIB)


async def test_first_in_first_out() -> None:
    """Sessions get in in the order in which they asked."""
    heap = SessionHeap(10, 10)
    order: list[int] = []

    async def session(number: int) -> None:
        async with heap.session():
            order.append(number)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(session, number)
    assert order == list(range(20))


async def test_growth_is_charged_and_given_back() -> None:
    """A transcript past its share costs more; nobody starts while the heap is overdrawn; shrinking gives back."""
    heap = SessionHeap(10, 3)
    async with heap.session() as first:
        assert first.charge(2) is True
        assert heap.statistics().used == 3
        assert first.charge(11) is False
        assert heap.statistics().used == 11
        started = anyio.Event()

        async def second() -> None:
            async with heap.session():
                started.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(second)
            await anyio.wait_all_tasks_blocked()
            assert not started.is_set()
            assert first.charge(7) is True
    assert heap.statistics().used == 0


async def test_a_session_that_fails_gives_all_back() -> None:
    """An exception in a session leaves nothing charged."""
    heap = SessionHeap(10, 3)
    rooms: list[Room] = []

    async def fail() -> None:
        async with heap.session() as room:
            rooms.append(room)
            room.charge(9)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert (heap.statistics().used, heap.statistics().sessions) == (0, 0)
    with pytest.raises(ValueError, match="given its room back"):
        rooms[0].charge(1)


async def test_a_waiter_that_is_cancelled_leaves_no_trace() -> None:
    """A cancelled waiter takes no room, also when it was let in in that moment."""
    heap = SessionHeap(3, 3)

    async def wait(scope: anyio.CancelScope) -> None:
        with scope:
            async with heap.session():
                pass

    async with anyio.create_task_group() as tasks:
        waiting, let_in = anyio.CancelScope(), anyio.CancelScope()
        async with heap.session():
            tasks.start_soon(wait, let_in)
            tasks.start_soon(wait, waiting)
            await anyio.wait_all_tasks_blocked()
            waiting.cancel()
            await anyio.wait_all_tasks_blocked()
            assert heap.statistics().waiting == 1
        let_in.cancel()  # its turn is set, but it has not run yet
    assert (heap.statistics().used, heap.statistics().waiting) == (0, 0)


@settings(deadline=None, max_examples=50)
@given(
    steps=st.lists(st.tuples(st.sampled_from(["enter", "leave", "charge"]), st.integers(0, 40)), max_size=60),
    share=st.integers(1, 10),
)
def test_the_sum_is_always_right(steps: list[tuple[str, int]], share: int) -> None:
    """Whatever the order: `used` is the sum of the costs, and nobody is let in beyond the total."""

    async def play() -> None:
        heap = SessionHeap(30, share)
        inside: list[tuple[Room, anyio.Event]] = []
        model: dict[Room, int] = {}

        async def session() -> None:
            async with heap.session() as room:
                # The newcomer's share fitted into what the others cost.
                assert sum(model.values()) + share <= 30
                model[room] = share
                leave = anyio.Event()
                inside.append((room, leave))
                try:
                    await leave.wait()
                finally:
                    del model[room]

        async with anyio.create_task_group() as tasks:
            for what, number in steps:
                if what == "enter":
                    tasks.start_soon(session)
                elif inside and what == "leave":
                    inside.pop(number % len(inside))[1].set()
                elif inside:
                    room = inside[number % len(inside)][0]
                    model[room] = max(share, number)
                    assert room.charge(number) == (sum(model.values()) <= 30)
                for _ in range(4):  # a start, an admission, a leave, and who that lets in
                    await anyio.lowlevel.checkpoint()
                assert heap.statistics().used == sum(model.values())
                assert heap.statistics().sessions == len(model)
            tasks.cancel_scope.cancel()
        assert heap.statistics().used == 0

    anyio.run(play)
