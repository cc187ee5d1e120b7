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


class Plain:
    """The rules of the heap, as plainly as they can be said."""

    def __init__(self, total: int, share: int) -> None:
        self.total = total
        self.share = share
        self.waiting: list[int] = []
        self.costs: dict[int, int] = {}

    def ask(self, name: int) -> None:
        self.waiting.append(name)
        self._let_in()

    def charge(self, name: int, held: int) -> bool:
        self.costs[name] = max(self.share, held)
        self._let_in()
        return sum(self.costs.values()) <= self.total

    def gone(self, name: int) -> None:
        if name in self.waiting:
            self.waiting.remove(name)
        else:
            del self.costs[name]
        self._let_in()

    def _let_in(self) -> None:
        while self.waiting and sum(self.costs.values()) + self.share <= self.total:
            self.costs[self.waiting.pop(0)] = self.share


class Sessions:
    """Real sessions on a real heap, by name."""

    def __init__(self, heap: SessionHeap) -> None:
        self._heap = heap
        self.scopes: dict[int, anyio.CancelScope] = {}
        self.rooms: dict[int, Room] = {}
        self.order: list[int] = []
        self._ends: dict[int, anyio.Event] = {}
        self._failing: set[int] = set()

    async def run(self, name: int) -> None:
        self.scopes[name] = anyio.CancelScope()
        self._ends[name] = anyio.Event()
        with self.scopes[name]:
            try:
                async with self._heap.session() as self.rooms[name]:
                    self.order.append(name)
                    await self._ends[name].wait()
                    if name in self._failing:
                        raise RuntimeError
            except RuntimeError:
                pass
            finally:
                self.rooms.pop(name, None)
                del self.scopes[name]

    def end(self, name: int, how: str) -> None:
        if how == "cancel":
            self.scopes[name].cancel()
            return
        if how == "fail":
            self._failing.add(name)
        self._ends[name].set()


STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "leave", "fail", "cancel", "charge", "charge"]), st.integers(0, 40)),
    max_size=80,
)


@settings(deadline=None, max_examples=100)
@given(steps=STEPS, share=st.integers(1, 10))
def test_any_history_is_that_of_the_plain_rules(steps: list[tuple[str, int]], share: int) -> None:
    """Sessions that come, grow, end, fail and are cancelled inside or while they wait: in and out as the rules say."""

    async def play() -> None:
        heap = SessionHeap(30, share)
        plain = Plain(30, share)
        sessions = Sessions(heap)
        async with anyio.create_task_group() as tasks:
            for place, (what, number) in enumerate(steps):
                inside = list(plain.costs)
                known = [*inside, *plain.waiting] if what == "cancel" else inside
                if what == "ask":
                    plain.ask(place)
                    tasks.start_soon(sessions.run, place)
                elif known:
                    name = known[number % len(known)]
                    if what == "charge":
                        assert sessions.rooms[name].charge(number) == plain.charge(name, number)
                    else:
                        plain.gone(name)
                        sessions.end(name, what)
                for _ in range(5):  # a start, an admission, an end, and who that lets in
                    await anyio.lowlevel.checkpoint()
                now = heap.statistics()
                assert sessions.rooms.keys() == plain.costs.keys()
                assert {name: room.cost for name, room in sessions.rooms.items()} == plain.costs
                assert (now.used, now.waiting) == (sum(plain.costs.values()), len(plain.waiting))
            tasks.cancel_scope.cancel()
        assert sessions.order == sorted(sessions.order)
        now = heap.statistics()
        assert (now.used, now.sessions, now.waiting) == (0, 0, 0)

    anyio.run(play)
