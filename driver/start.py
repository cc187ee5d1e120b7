"""Puts the driver together: settings, log, hardening, gate and loop; and takes it apart again."""

import os
import random
import ssl
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import anyio

from driver import settings
from driver.clock import BootClock, Clock
from driver.errors import ProgramError, SettingsError
from driver.exits import DriverExit
from driver.front import Front
from driver.gateway.answer import USER_AGENT, tls_context
from driver.gateway.pull import PullClient
from driver.handover import release_stop_signals
from driver.hardening import exposed_to, make_undumpable
from driver.isolation import IsolationGate
from driver.loading import Loading
from driver.log import RENDERERS, Log, QueuedSink, render_json
from driver.loop import Loop
from driver.process.children import Children
from driver.process.orphans import become_subreaper, reap_forever, sweep
from driver.registry import installed_kinds
from driver.secrets import Secrets
from driver.settings import Settings
from driver.stop import HURRIED_SECONDS, Stop, listen

STDOUT: Final = 1
# What a driver whose clean-up hangs may take on top of its grace before it is ended from outside its event loop.
_OVERTIME_SECONDS: Final = 2.0


def run(environ: Mapping[str, str]) -> int:
    """Run the driver to its end and return its exit code. Raises SettingsError before anything was pulled."""
    clock = BootClock()
    started = clock.now()
    read = settings.read(environ)
    verify = _verification(read)
    sink = QueuedSink(STDOUT, render=RENDERERS[read.log_format])
    log = Log(
        sink,
        render=RENDERERS[read.log_format],
        level=read.log_level,
        secrets=Secrets(read.token),
        wall=clock.wall,
    )
    log.info("driver.started", version=USER_AGENT, gateway=read.gateway_url, workspace=str(read.workspace))
    try:
        make_undumpable()
        become_subreaper()
        if reason := exposed_to(_readable_token_file(read), read.gateway_url):
            log.warning("token.exposed", reason=reason)
        code = anyio.run(_drive, read, verify, clock, log, sink, started)
    except BaseException as error:  # also a kind that calls sys.exit
        log.error("driver.internal_fault", error=repr(error), traceback=traceback.format_exc())
        code = DriverExit.INTERNAL
    log.info("driver.stopped", exit=int(code))
    sink.close()
    return code


def tell_problems(problems: list[str], environ: Mapping[str, str]) -> None:
    """One line for each problem with the settings, in the log's format as far as that can be told."""
    sink = QueuedSink(STDOUT)
    log = Log(sink, render=RENDERERS.get(environ.get("DRIVER_LOG", ""), render_json), wall=time.time)
    for problem in problems:
        log.error("setting.wrong", problem=problem)
    sink.close()


def _readable_token_file(read: Settings) -> Path | None:
    """The token's file, unless programs are kept from it (driver.process.confinement)."""
    if read.token_file is None:
        return None
    from driver.process import landlock

    return None if landlock.version() else read.token_file


def _verification(read: Settings) -> ssl.SSLContext | bool:
    try:
        return tls_context(read.gateway_url, read.gateway_ca)
    except OSError as error:
        raise SettingsError([f"HEPHAESTUS_GATEWAY_CA: holds no certificate that can be loaded ({error})"]) from error


async def _drive(
    read: Settings, verify: ssl.SSLContext | bool, clock: Clock, log: Log, sink: QueuedSink, started: float
) -> DriverExit:
    answered = anyio.Event()
    front = Front(
        settings=read,
        verify=verify,
        answered=answered.set,
        kinds=installed_kinds(),
        children=Children(),
        gate=IsolationGate(read.isolation, clock=clock, log=log, answered=answered, started=started),
        stop=Stop(read.stop_grace, clock),
        clock=clock,
        rng=random.Random(),
        log=log,
    )
    loading = Loading(front)
    pulls = PullClient(
        read.gateway_url, read.token, clock=clock, verify=verify, on_answer=answered.set, on_out=loading.begin
    )
    async with anyio.create_task_group() as tasks, pulls:
        await tasks.start(listen, front.stop, log)
        release_stop_signals()
        tasks.start_soon(_end_overtime, front.stop, log, sink)
        tasks.start_soon(reap_forever, front.children, clock)
        tasks.start_soon(loading.run)
        try:
            code = await Loop(front, pulls, loading).run()
        finally:
            await _leave_nothing(front.children, log)
        tasks.cancel_scope.cancel("the loop is over")
    return code


async def _leave_nothing(children: Children, log: Log) -> None:
    """End whatever programs have left; where that fails, the driver's end tells more than this does."""
    try:
        with anyio.CancelScope(shield=True):  # bounded by the sweep itself
            await sweep(children)
    except ProgramError as error:
        log.error("program.left_behind", error=str(error))


async def _end_overtime(stop: Stop, log: Log, sink: QueuedSink) -> None:
    """Once a stop is asked for, see that the process ends even if its event loop or a thread hangs."""
    await stop.wait_asked()
    _cut_off_after(stop.grace + _OVERTIME_SECONDS, log, sink)
    await stop.wait_hurried()
    _cut_off_after(HURRIED_SECONDS + _OVERTIME_SECONDS, log, sink)


def _cut_off_after(seconds: float, log: Log, sink: QueuedSink) -> None:
    def cut_off() -> None:
        log.error("driver.cut_off", exit=int(DriverExit.INTERNAL))
        sink.close()
        os._exit(DriverExit.INTERNAL)

    timer = threading.Timer(seconds, cut_off)
    timer.daemon = True
    timer.start()
