"""The result of a run on its way to the gateway: packed once, sent until it is acknowledged or too late."""

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from anyio import to_thread

from driver.clock import Clock
from driver.errors import ContractError, GatewayRefused, GatewayUnavailable, KindFailed, PackagingError
from driver.exits import ProgramExit
from driver.gateway.client import RunCalls
from driver.gateway.retries import Retries
from driver.gateway.wire import Runtime
from driver.log import Log
from driver.workspace.pack import Packed, pack

REPORT_NAME: Final = b"driver.json"
_LEAST_TRY: Final = 1.0


class ResultDelivery:
    """Delivers `out/` of one run. See driver.kind.Results."""

    def __init__(
        self,
        out: Path,
        calls: RunCalls,
        retries: Retries,
        *,
        runtime: Callable[[], Awaitable[Runtime]],
        report: Callable[[], Mapping[str, Any]],
        clock: Clock,
        log: Log,
    ) -> None:
        self._out = out
        self._calls = calls
        self._retries = retries
        self._runtime = runtime
        self._report = report
        self._clock = clock
        self._log = log
        self.delivered = False

    async def deliver(self, exit: int) -> str:
        ended_at = self._clock.now()
        try:
            runtime = await self._runtime()
            with _unnamed_file() as archive:
                packed = await self._pack(archive, runtime)
                await self._send(archive, packed, exit, until=ended_at + runtime.upload_seconds)
        except (GatewayUnavailable, GatewayRefused, ContractError) as error:
            raise KindFailed(ProgramExit.NOT_ACKNOWLEDGED, f"the result was not acknowledged: {error}") from error
        except (PackagingError, OSError) as error:
            raise KindFailed(ProgramExit.NOT_ACKNOWLEDGED, f"the result cannot be packed: {error}") from error
        self.delivered = True
        self._log.info("result.uploaded", bytes=packed.size, exit=exit, digest=packed.digest_field)
        return packed.digest_field

    async def _send(self, archive: BinaryIO, packed: Packed, exit: int, *, until: float) -> None:
        def left() -> float:
            return until - self._clock.now()

        async def once() -> None:
            seconds = max(left(), _LEAST_TRY)
            await self._calls.result(archive, packed.size, packed.digest_field, exit, seconds=seconds)

        await self._retries("result", once, within=left())

    async def _pack(self, archive: BinaryIO, runtime: Runtime) -> Packed:
        report = json.dumps(self._report(), indent=2).encode() + b"\n"
        packing = partial(pack, self._out, archive, added={REPORT_NAME: report})
        packed = await to_thread.run_sync(packing)
        if packed.size > runtime.result_bytes:
            raise PackagingError(f"it has {packed.size:,} bytes, and the gateway takes {runtime.result_bytes:,}")
        self._log.info("result.packed", bytes=packed.size, entries=packed.entries)
        return packed


def _unnamed_file() -> BinaryIO:
    """A file in memory: a full disk takes nothing of a result away, and no program can open it.

    It holds no more than a result may have, and the programs, whose memory it takes, are gone.
    """
    return open(os.memfd_create("result", os.MFD_CLOEXEC), "w+b", buffering=0)
