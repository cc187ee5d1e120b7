"""Pieces are worked on in order, beside what fetches them."""

import anyio
import pytest

from driver.workspace.pipeline import pipeline

pytestmark = pytest.mark.anyio


async def test_everything_is_taken_in_order() -> None:
    """When the block is left, all that was given was taken, in its order."""
    taken: list[bytes] = []

    async def take(piece: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        taken.append(piece)

    async with pipeline(take) as give:
        for number in range(20):
            await give(b"%d" % number)
    assert taken == [b"%d" % number for number in range(20)]


async def test_few_pieces_wait() -> None:
    """While one piece is worked on and one waits, nobody can give a third."""
    go_on = anyio.Event()
    given = 0

    async def take(_piece: bytes) -> None:
        await go_on.wait()

    async def giving() -> None:
        nonlocal given
        async with pipeline(take) as give:
            for _ in range(5):
                await give(b"x")
                given += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(giving)
        await anyio.wait_all_tasks_blocked()
        assert given == 2
        go_on.set()
    assert given == 5


async def test_an_error_of_the_work_comes_out_as_it_is() -> None:
    """It ends who gives, wherever that one waits, and nothing more is taken."""
    taken: list[bytes] = []

    async def take(piece: bytes) -> None:
        taken.append(piece)
        raise OSError("full")

    with pytest.raises(OSError, match="full"):  # noqa: PT012 # the block is what ends
        async with pipeline(take) as give:
            await give(b"one")
            await anyio.sleep_forever()
    assert taken == [b"one"]


async def test_an_error_of_the_giver_waits_for_the_work() -> None:
    """What was given before is still taken; the error comes out as it is."""
    taken: list[bytes] = []

    async def take(piece: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        taken.append(piece)

    with pytest.raises(ValueError, match="broke"):  # noqa: PT012 # the block is what ends
        async with pipeline(take) as give:
            await give(b"one")
            await give(b"two")
            raise ValueError("broke")
    assert taken == [b"one", b"two"]


async def test_a_cancel_drops_what_waits() -> None:
    """A cancelled giver does not go on with what nobody wants any more."""
    taken: list[bytes] = []

    async def take(piece: bytes) -> None:
        taken.append(piece)
        await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        async with pipeline(take) as give:
            await give(b"one")
            await give(b"two")
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert taken == [b"one"]
