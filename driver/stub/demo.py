"""One review from end to end on a laptop: a stub, the real entrypoint, and what came of it.

`make demo` and `make review` call it. The driver runs as in a Pod, as a process of its own; a port on which
nobody listens stands in for the Kubernetes API that a network policy would close.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import Process

from driver.stub.errors import StubError
from driver.stub.example import RANGE, make_example
from driver.stub.git import Git
from driver.stub.provider import ProviderSettings
from driver.stub.refusals import refusal_line
from driver.stub.scenario import Scenario, WorkspaceTable, load_scenario
from driver.stub.server import Stub, running_stub
from driver.stub.shown import read_review, review_lines, unpack_result

_FAILED: Final = 1
_WRONG_USE: Final = 2
_NEWEST_COMMITS: Final = 3
_STOP_SECONDS: Final = 40.0
_ROOT: Final = Path(__file__).parents[2]
_KEY_VARIABLE: Final = "PROVIDER_KEY"


@dataclass(frozen=True)
class Shown:
    """What is reviewed and who answers as the model; `told` names it for a person."""

    scenario: Scenario
    provider: ProviderSettings | None
    told: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one review and show it: 0 when it was completed, 1 when not, 2 for what the person got wrong."""
    options = _parser().parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="demo-") as scratch:
            shown = _shown(options, Path(scratch))
            return anyio.run(_show, shown, options.out, Path(scratch))
    except StubError as error:
        _say(f"error: {error}")
        return _WRONG_USE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m driver.stub.demo", description="One review from end to end.")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="where the result goes")
    parser.add_argument("--repository", type=Path, help="a local git repository; by default the one around here")
    parser.add_argument("--range", default="", help="what to review of it, as in main..topic")
    parser.add_argument("--provider-url", default="", help=f"a real provider; its key is taken from {_KEY_VARIABLE}")
    parser.add_argument("--model", default="", help="the provider's model")
    parser.add_argument("--wire", default="responses", choices=("responses", "chat", "messages"))
    return parser


def _shown(options: argparse.Namespace, scratch: Path) -> Shown:
    """Decide what is reviewed. Raises StubError for what the person got wrong."""
    scenario = load_scenario("clean")
    repository, wanted = options.repository, options.range
    if repository is not None and not wanted:
        raise StubError("RANGE: which commits are to be reviewed? As in RANGE=main..topic or RANGE=HEAD~3..HEAD")
    if repository is None:
        repository, wanted = _own_commits(scratch) or _example(scratch)
    workspace = WorkspaceTable(repository=repository.absolute(), range=wanted, title=f"The commits {wanted}")
    update: dict[str, object] = {"workspace": workspace}
    provider = None
    if options.provider_url:
        if not options.model:
            raise StubError("MODEL: is required with PROVIDER_URL")
        if not options.provider_url.startswith(("http://", "https://")):
            raise StubError("PROVIDER_URL: must begin with http:// or https://")
        provider = ProviderSettings(options.provider_url, os.environ.get(_KEY_VARIABLE, ""))
        update["model"] = scenario.model.model_copy(update={"id": options.model, "wire": options.wire})
    model = f"{options.model} at {options.provider_url}" if provider else "the scripted model, offline"
    return Shown(scenario.model_copy(update=update), provider, f"{wanted} of {repository.absolute()}, by {model}")


def _own_commits(scratch: Path) -> tuple[Path, str] | None:
    """The newest commits of the repository that this code lies in, if it is one with at least two."""
    git = Git(_ROOT, scratch)
    if not git.ok("rev-parse", "--verify", "-q", "HEAD~1"):
        return None
    count = min(_NEWEST_COMMITS, int(git.run("rev-list", "--first-parent", "--count", "HEAD")) - 1)
    return _ROOT, f"HEAD~{count}..HEAD"


def _example(scratch: Path) -> tuple[Path, str]:
    make_example(scratch / "example", scratch)
    return scratch / "example", RANGE


async def _show(shown: Shown, out: Path, scratch: Path) -> int:
    _say(f"reviewing {shown.told}")
    async with running_stub(shown.scenario, provider=shown.provider) as stub:
        with _closed_port() as closed:
            await _drive(stub, scratch / "workspace", closed)
        return _tell(stub, out)


async def _drive(stub: Stub, workspace: Path, closed_port: int) -> None:
    """Run the driver until the run has ended, then stop it as a cluster would."""
    entrypoint = _ROOT / "entrypoint.sh"
    command = [str(entrypoint)] if entrypoint.exists() else [sys.executable, "-I", "-m", "driver"]
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "DRIVER_PYTHON": sys.executable,
        "HEPHAESTUS_GATEWAY_URL": stub.url,
        "HEPHAESTUS_SANDBOX_TOKEN": stub.token,
        "DRIVER_WORKSPACE": str(workspace),
        "DRIVER_ISOLATION_TARGET": f"127.0.0.1:{closed_port}",
        "DRIVER_LOG": "console",
    }
    process = await anyio.open_process(command, env=environment, stdin=subprocess.DEVNULL, stdout=None, stderr=None)
    async with process, anyio.create_task_group() as tasks:
        tasks.start_soon(_tell_refusals, stub)
        tasks.start_soon(_stop_when_ended, stub, process)
        code = await process.wait()
        tasks.cancel_scope.cancel("the driver has ended")
    if code != 0:
        raise StubError(f"the driver ended with exit code {code}")


async def _stop_when_ended(stub: Stub, process: Process) -> None:
    await stub.wait_ended()
    process.send_signal(signal.SIGTERM)
    await anyio.sleep(_STOP_SECONDS)
    process.kill()


async def _tell_refusals(stub: Stub) -> None:
    """A provider that refuses is a matter for the person at the terminal, and told once."""
    told: set[str] = set()
    async for entry in stub.state.journal.follow():
        line = refusal_line(entry)
        if line and line not in told:
            told.add(line)
            _say(f"error: {line}")


def _tell(stub: Stub, out: Path) -> int:
    run = next(iter(stub.state.runs))
    result = stub.state.results.newest(run.terms.id)
    if result is None:
        _say(f"error: the run ended {run.outcome}, and nothing was uploaded")
        return _FAILED
    shutil.rmtree(out, ignore_errors=True)
    files = unpack_result(result.body, out)
    review = read_review(out / "out")
    _say("")
    _say(f"the run ended {run.outcome}, exit {result.exit}")
    for line in review_lines(review) if review else ():
        _say(line)
    _say("files:")
    for file in files:
        _say(f"  {file}  {file.stat().st_size:,} bytes")
    return 0 if run.outcome == "COMPLETED" else _FAILED


@contextmanager
def _closed_port() -> Iterator[int]:
    """A port that is taken and on which nobody listens: a connection to it is refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
