"""Sections of work: a stop cuts them short, and what follows them runs."""

import anyio
import pytest

from driver.kind import StopReason
from driver.work import WorkSections

pytestmark = pytest.mark.anyio


async def test_stop_cuts_a_section_short() -> None:
    """The section is left at its wait, tells why, and the code after it goes on."""
    work = WorkSections()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop, work, StopReason.DEADLINE)
        with work.section() as section:
            await anyio.sleep_forever()
    assert section.stopped is StopReason.DEADLINE


async def _stop(work: WorkSections, reason: StopReason) -> None:
    work.stop(reason)


async def test_section_that_ends_by_itself() -> None:
    """A section that was not cut short does not claim to be, even if a stop comes later."""
    work = WorkSections()
    with work.section() as section:
        await anyio.lowlevel.checkpoint()
    work.stop(StopReason.STOPPING)
    assert section.stopped is None
    assert work.cut is None


async def test_a_stop_is_latched() -> None:
    """A section that is entered after the stop is left at its first wait; the first reason stays."""
    work = WorkSections()
    work.stop(StopReason.DEADLINE)
    work.stop(StopReason.STOPPING)
    with work.section() as section:
        await anyio.sleep_forever()
    assert section.stopped is StopReason.DEADLINE
    assert work.stopped is work.cut is StopReason.DEADLINE


async def test_errors_pass_through() -> None:
    """An error inside a section is nobody's stop."""
    work = WorkSections()
    with pytest.raises(ValueError, match="mine"):
        with work.section():
            raise ValueError("mine")


@pytest.mark.parametrize(("reason", "code"), [(StopReason.DEADLINE, 124), (StopReason.STOPPING, 143)])
async def test_exit_of_a_stopped_program(reason: StopReason, code: int) -> None:
    """A result whose program was stopped carries the exit of the reason."""
    assert reason.exit == code
