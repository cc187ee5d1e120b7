"""The driver's way to a workspace in a process of its own, once; for bench.workspace.

`python -m bench.workspace_process URL DIGEST BYTES ROOT` prints one JSON line with its figures.
"""

import json
import random
import resource
import sys
import time
from pathlib import Path

import anyio
import psutil

from bench.door_process import Lateness
from driver.clock import BootClock
from driver.gateway.client import GatewayClient
from driver.gateway.wire import CONTRACT, Run, Runtime
from driver.layout import Layout
from driver.log import Log, render_json
from driver.workspace.prepare import RunWorkspace


async def main(url: str, digest: str, size: int, root: Path) -> None:
    run = Run(id="run-1", kind="REVIEW", subject="review:1", epoch=1, attempt=0)
    runtime = Runtime(
        contract=CONTRACT, workspace_bytes=size, workspace_digest=digest, result_bytes=1, upload_seconds=1.0
    )

    async def told() -> Runtime:
        return runtime

    log = Log(lambda _line: None, render=render_json, wall=time.time)
    lateness = Lateness()
    async with GatewayClient(url, "token", verify=False) as gateway:
        workspace = RunWorkspace(
            Layout(root),
            runtime=told,
            open_archive=gateway.for_run(run, lambda: None).workspace,
            log=log,
            clock=BootClock(),
            rng=random.Random(1),
        )
        idle = psutil.Process().memory_info().rss
        before = resource.getrusage(resource.RUSAGE_SELF)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lateness.watch)
            started = time.perf_counter()
            await workspace.prepare()
            seconds = time.perf_counter() - started
            tasks.cancel_scope.cancel()
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "seconds": seconds,
        "cpu_seconds": used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime,
        "peak_mib": (used.ru_maxrss * 1024 - idle) / 2**20,
        "lateness_max_ms": max(lateness.samples, default=0.0) * 1000,
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
