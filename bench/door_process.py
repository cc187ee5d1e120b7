"""The door in a process of its own, as the driver runs it; for bench.door.

Prints one JSON line when it is ready, and one with its figures when its standard input ends.
"""

import gc
import json
import os
import resource
import sys
import time
from contextlib import suppress
from typing import Any, Final

import anyio
import psutil

from driver.clock import BootClock
from driver.door.permits import Budgets
from driver.door.server import open_door
from driver.door.upstream import Upstream
from driver.log import Log, QueuedSink, render_json

TICK: Final = 0.005


class Lateness:
    """How late the event loop comes back to a timer, in seconds."""

    def __init__(self) -> None:
        self.samples: list[float] = []

    async def watch(self) -> None:
        while True:
            due = time.perf_counter() + TICK
            await anyio.sleep(TICK)
            self.samples.append(max(0.0, time.perf_counter() - due))


async def main(gateway: str) -> None:
    budgets = Budgets()
    lateness = Lateness()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        log = Log(QueuedSink(nowhere), render=render_json, wall=time.time)
        upstream = Upstream(gateway, "a-token", verify=False, run_id="run-1", epoch=1, user_agent="bench")
        async with (
            open_door(
                upstream,
                model="bench",
                budgets=budgets,
                log=log,
                clock=BootClock(),
                on_claim_refused=lambda status: None,
            ) as door,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(lateness.watch)
            idle = psutil.Process().memory_info().rss
            say({"url": door.url, "key": door.key})
            with suppress(anyio.EndOfStream):
                await anyio.to_thread.run_sync(sys.stdin.read)
            say(figures(budgets, lateness, idle, door.statistics()))
            tasks.cancel_scope.cancel()
    finally:
        os.close(nowhere)


def figures(budgets: Budgets, lateness: Lateness, idle: int, statistics: dict[str, Any]) -> dict[str, Any]:
    """What the process used, and what did not come back."""
    permits = [budgets.transports.statistics(), budgets.parsing.statistics()]
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "lateness": sorted(lateness.samples)[-2000:],
        "lateness_samples": len(lateness.samples),
        "peak_mib": (used.ru_maxrss * 1024 - idle) / 2**20,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "not_returned": sum(p.active + p.waiting for p in permits) + budgets.storage.statistics().reserved,
        "waited_seconds": statistics["waitingSeconds"],
        "statistics": statistics,
    }


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    gc.freeze()  # as driver.start does
    anyio.run(main, sys.argv[1])
