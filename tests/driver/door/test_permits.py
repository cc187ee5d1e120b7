"""The budgets: fair, bounded, and never short of a permit or a byte whatever happens to a caller."""

from collections.abc import Callable

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.door.permits import FifoSemaphore, ParsingPermit, PermitStatistics, Storage, TransportPermits, Waiter
from driver.errors import DoorRefusal

pytestmark = pytest.mark.anyio


def ignore(_: PermitStatistics) -> None:
    pass


@given(
    limit=st.integers(1, 3),
    places=st.none() | st.integers(0, 3),
    history=st.lists(st.just("enter") | st.integers(0, 7), max_size=60),
)
def test_semaphore_is_a_fifo_queue(limit: int, places: int | None, history: list[str | int]) -> None:
    """In any history the first `limit` of those who came and have not left hold a permit, and nobody else.

    A number lets that one of the present callers leave: it gives its permit back, or its place in the queue up.
    """
    semaphore = FifoSemaphore(limit, places)
    present: list[Waiter] = []
    for step in history:
        if isinstance(step, int):
            if step < len(present):
                semaphore.leave(present.pop(step))
        else:
            waiter = semaphore.enter()
            fits = places is None or len(present) < limit + places
            assert (waiter is not None) == fits
            if waiter is not None:
                present.append(waiter)
        # Who holds a permit never loses it to somebody who came before but waited: they are always in front.
        assert [waiter.granted.is_set() for waiter in present] == [True] * len(present[:limit]) + [False] * len(
            present[limit:]
        )
        assert semaphore.statistics() == PermitStatistics(len(present[:limit]), len(present[limit:]), limit, places)


def test_permit_comes_back_exactly_once() -> None:
    """Giving a permit back twice is a fault that is told, and frees nothing."""
    semaphore = FifoSemaphore(1)
    waiter = semaphore.enter()
    assert waiter is not None
    semaphore.leave(waiter)
    with pytest.raises(ValueError, match="not in"):
        semaphore.leave(waiter)
    assert semaphore.statistics().active == 0


async def test_waiter_that_is_cancelled_leaves_the_queue() -> None:
    """A cancelled waiter takes no permit and no place."""
    permits = TransportPermits(active=1, queue=1)
    async with permits.hold(ignore), anyio.create_task_group() as tasks:
        tasks.start_soon(hold_for_ever, permits, ignore)
        await anyio.wait_all_tasks_blocked()
        assert permits.statistics().waiting == 1
        tasks.cancel_scope.cancel()
    assert permits.statistics() == PermitStatistics(0, 0, 1, 1)


async def hold_for_ever(permits: TransportPermits, on_waiting: Callable[[PermitStatistics], None]) -> None:
    async with permits.hold(on_waiting):
        await anyio.sleep_forever()


async def test_permit_that_came_too_late_is_passed_on() -> None:
    """A waiter that was handed a permit and is cancelled before it runs gives it to the next one."""
    permits = TransportPermits(active=1, queue=2)
    second_held = anyio.Event()

    async def second() -> None:
        async with permits.hold(ignore):
            second_held.set()

    async with anyio.create_task_group() as tasks, anyio.create_task_group() as first:
        async with permits.hold(ignore):
            first.start_soon(hold_for_ever, permits, ignore)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(second)
            await anyio.wait_all_tasks_blocked()
        # The permit is with the first waiter now, which has not run since.
        assert permits.statistics() == PermitStatistics(1, 1, 1, 2)
        first.cancel_scope.cancel()
        with anyio.fail_after(5):
            await second_held.wait()
    assert permits.statistics() == PermitStatistics(0, 0, 1, 2)


@pytest.mark.parametrize(("queue", "admitted"), [(0, 1), (2, 3)])
async def test_full_queue_refuses(queue: int, admitted: int) -> None:
    """As many callers wait as there are places; the next one is refused at once."""
    permits = TransportPermits(active=1, queue=queue)
    waiting: list[PermitStatistics] = []
    async with anyio.create_task_group() as tasks:
        for _ in range(admitted):
            tasks.start_soon(hold_for_ever, permits, waiting.append)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(DoorRefusal) as refused:
            await hold_for_ever(permits, waiting.append)
        assert (refused.value.status, refused.value.code, refused.value.retry_after) == (429, "local_capacity", 1)
        assert [counts.waiting for counts in waiting] == list(range(1, queue + 1))
        tasks.cancel_scope.cancel()


async def test_expired_wait_refuses() -> None:
    """A wait that is over is refused, and the permit that it waited for stays where it is."""
    permits = TransportPermits(active=1, queue=1, wait=0.01)
    async with permits.hold(ignore):
        with pytest.raises(DoorRefusal, match=r"none came back within 0\.01 s"):
            await hold_for_ever(permits, ignore)
        assert permits.statistics() == PermitStatistics(1, 0, 1, 1)


async def test_parsing_permit_is_one_and_fair() -> None:
    """One step at a time holds it, in the order in which they asked."""
    parsing = ParsingPermit()
    order: list[int] = []

    async def step(number: int) -> None:
        async with parsing.hold():
            assert parsing.statistics().active == 1
            order.append(number)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(step, number)
    assert order == [0, 1, 2, 3, 4]
    assert parsing.statistics() == PermitStatistics(0, 0, 1, None)


async def test_failed_step_gives_the_parsing_permit_back() -> None:
    """A step that raises leaves the permit for the next one."""
    parsing = ParsingPermit()
    with pytest.raises(KeyError):
        async with parsing.hold():
            raise KeyError
    assert parsing.statistics().active == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=40))
def test_storage_never_exceeds_its_limit(moves: list[tuple[int, int]]) -> None:
    """Whatever accounts ask for, their sum is what is reserved; a refusal changes nothing; all is returned."""
    storage = Storage(100)
    with storage.retain() as a, storage.retain() as b, storage.retain() as c, storage.retain() as d:
        accounts = (a, b, c, d)
        held = [0, 0, 0, 0]
        for number, size in moves:
            if sum(held) - held[number] + size > 100 and size > held[number]:
                with pytest.raises(DoorRefusal) as refused:
                    accounts[number].resize(size)
                assert refused.value.code == "local_capacity"
            else:
                accounts[number].resize(size)
                held[number] = size
            assert [account.held for account in accounts] == held
            assert storage.statistics().reserved == sum(held) <= 100
    assert storage.statistics().reserved == 0


@pytest.mark.parametrize(("size", "fits"), [(99, True), (100, True), (101, False)])
def test_storage_limit_is_exact(size: int, fits: bool) -> None:
    """The limit itself fits, one byte more does not."""
    storage = Storage(100)
    with storage.retain() as retained:
        if fits:
            retained.resize(size)
        else:
            with pytest.raises(DoorRefusal, match="hold 0 of the 100 bytes"):
                retained.resize(size)
