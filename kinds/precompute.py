"""The precompute stage: scripts of the workspace that prepare hints for the model.

Each executable in the task's `precomputeScripts` is run, sorted by name, with four arguments: the context
root, the reviewed repository, the change view, and the file to write its hints to, which is
`work/precompute/<script>.json`. Hints are a JSON object or list. The whole stage gets a tenth of the work
time, at most 30 s; a script may write 10 MiB a file. It has no door.

`work/precompute/index.json` lists `{script, status, reason}` for each script; a status is ok, failed, timeout,
invalid or skipped. Beside it lie the outputs of those that are ok, and nothing else. Whatever goes wrong
here is recorded and never the review's failure: hints are no observations.
"""

import json
import os
import shutil
import stat
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import anyio
import anyio.to_thread

from driver.errors import ProgramError
from driver.exits import ProgramExit, meaning
from driver.kind import HeldRun, ProgramEnd
from driver.layout import Layout
from kinds.limited import limited
from kinds.programs.envelope import TaskEnvelope

Status = Literal["ok", "failed", "timeout", "invalid", "skipped"]

_MIB = 1024 * 1024
OUTPUT_BYTES: Final = 10 * _MIB
_STAGE_SHARE: Final = 0.1
_STAGE_SECONDS: Final = 30.0
_MOST_SCRIPTS: Final = 100
_TOO_MANY: Final = f"only the first {_MOST_SCRIPTS} scripts are run"
_INDEX: Final = "index"

# Parsing 10 MiB holds an interpreter's lock for longer than a renewal may wait, so a child does it.
_CHECKER: Final = """
import json, sys
def refuse(text): raise ValueError(text)
with open(sys.argv[1], "rb") as file:
    hints = json.loads(file.read().decode("utf-8"), parse_constant=refuse)
sys.exit(0 if isinstance(hints, (dict, list)) else 1)
"""


@dataclass(frozen=True)
class ScriptEnd:
    """What became of one script."""

    script: str
    status: Status
    reason: str | None = None


async def precompute(held: HeldRun, envelope: TaskEnvelope) -> list[ScriptEnd]:
    """Run the scripts and leave what they are good for in `work/precompute`. Fails for nothing of theirs."""
    layout = held.workspace.layout
    ends: list[ScriptEnd] = []
    until = anyio.current_time() + min(held.work_seconds() * _STAGE_SHARE, _STAGE_SECONDS)
    try:
        await anyio.to_thread.run_sync(_start, _directory(layout))
        scripts = await anyio.to_thread.run_sync(_scripts, layout.root / envelope.precompute_scripts)
        for script in scripts[:_MOST_SCRIPTS]:
            ends.append(await _run(held, envelope, script, until))
            _log(held, ends[-1])
        ends += [ScriptEnd(script.name, "skipped", _TOO_MANY) for script in scripts[_MOST_SCRIPTS:]]
        ends = await anyio.to_thread.run_sync(_finish, _directory(layout), ends)
    except OSError as error:
        held.log.warning("precompute.stage_failed", reason=str(error))
    return ends


def _directory(layout: Layout) -> Path:
    return layout.work / "precompute"


def _log(held: HeldRun, end: ScriptEnd) -> None:
    write = held.log.info if end.status == "ok" else held.log.warning
    write("precompute.script_ended", script=end.script, status=end.status, reason=end.reason)


def _start(directory: Path) -> None:
    if directory.is_symlink() or directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)


def _scripts(place: Path) -> list[Path]:
    """The executables at `place`, sorted; none where there is no such directory."""
    if not place.is_dir():
        return []
    with os.scandir(place) as entries:
        executables = [Path(entry) for entry in entries if _is_executable(entry)]
    return sorted(executables)


def _is_executable(entry: "os.DirEntry[str]") -> bool:
    mode = entry.stat(follow_symlinks=False).st_mode
    return stat.S_ISREG(mode) and bool(mode & stat.S_IXUSR)


async def _run(held: HeldRun, envelope: TaskEnvelope, script: Path, until: float) -> ScriptEnd:
    layout, name = held.workspace.layout, script.name
    left = until - anyio.current_time()
    if name == _INDEX:
        return ScriptEnd(name, "skipped", "its output would take the place of index.json")
    if left <= 0:
        return ScriptEnd(name, "skipped", "the time of the stage was over")
    output = _directory(layout) / f"{name}.json"
    context, repository = layout.root / envelope.context_root, layout.root / envelope.repository_root
    arguments = (script, context, repository, layout.work / "change", output)
    command = limited(list(map(str, arguments)), OUTPUT_BYTES)
    try:
        end = await held.programs.run(command, cwd=layout.root, timeout=left, step=f"precompute {name}")
        if end.exit != 0:
            return _not_ok(name, end)
        return await _judge(held, name, output, until)
    except ProgramError as error:
        return ScriptEnd(name, "failed", str(error))


def _not_ok(name: str, end: ProgramEnd) -> ScriptEnd:
    if end.reason == "timeout":
        return ScriptEnd(name, "timeout", "the time of the stage was over")
    return ScriptEnd(name, "failed", end.reason or _meaning(end.exit))


def _meaning(code: int) -> str:
    """A script's exit codes are its own: only a signal means the same for everybody."""
    return meaning(code) if code > 128 else f"exit code {code}"


async def _judge(held: HeldRun, name: str, output: Path, until: float) -> ScriptEnd:
    fault = await anyio.to_thread.run_sync(_fault_of_file, output)
    if fault is not None:
        return ScriptEnd(name, "invalid", fault)
    command = [sys.executable, "-I", "-S", "-c", _CHECKER, str(output)]
    left = max(until - anyio.current_time(), 0.1)
    end = await held.programs.run(command, cwd=held.workspace.layout.root, timeout=left, step="json check")
    if end.exit == ProgramExit.COMPLETE:
        return ScriptEnd(name, "ok")
    if end.reason is not None:
        return _not_ok(name, end)
    return ScriptEnd(name, "invalid", "its output is not a JSON object or list")


def _fault_of_file(output: Path) -> str | None:
    try:
        found = output.lstat()
    except FileNotFoundError:
        return "it wrote no output"
    except OSError as error:
        return f"its output cannot be read ({error.strerror})"
    if not stat.S_ISREG(found.st_mode):
        return "its output is no regular file"
    if found.st_size > OUTPUT_BYTES:
        return f"its output is larger than {OUTPUT_BYTES // _MIB} MiB"
    return None


def _finish(directory: Path, ends: list[ScriptEnd]) -> list[ScriptEnd]:
    """Put what is valid into a new directory, with the index.

    What else the scripts left goes with the workspace: it may be of a kind that cannot be removed just now.
    """
    left = Path(tempfile.mkdtemp(prefix="precompute.", dir=directory.parent))
    directory.rename(left)
    left.chmod(0o700)
    directory.mkdir()
    told = [_kept(end, left, directory) for end in ends]
    text = json.dumps([asdict(end) for end in told], indent=1)
    (directory / f"{_INDEX}.json").write_text(text + "\n", "ascii")
    return told


def _kept(end: ScriptEnd, left: Path, directory: Path) -> ScriptEnd:
    if end.status != "ok":
        return end
    try:
        (left / f"{end.script}.json").rename(directory / f"{end.script}.json")
    except FileNotFoundError:
        return ScriptEnd(end.script, "invalid", "another script removed its output")
    return end
