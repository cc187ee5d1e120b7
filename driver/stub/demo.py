"""One review and its feedback from end to end on a laptop: a stub, the real entrypoint, and what came of it.

`make demo` and `make review` call it. What the person got wrong is one line and exit 2; Ctrl-C stops the
driver as a cluster would, and leaves nothing behind.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from driver.errors import leaves
from driver.stub.driven import drive, interruptible
from driver.stub.errors import StubError
from driver.stub.example import RANGE, make_example
from driver.stub.git import Git
from driver.stub.provider import ProviderSettings, provider_settings
from driver.stub.refusals import refusal_line
from driver.stub.runs import AgentRun
from driver.stub.scenario import Scenario, WorkspaceTable, load_scenario
from driver.stub.server import Stub, running_stub
from driver.stub.shown import (
    FEEDBACK,
    REVIEW,
    plain,
    read_feedback,
    read_review,
    remove_result,
    replace_result,
    require_ours,
)

_FAILED: Final = 1
_WRONG_USE: Final = 2
_INTERRUPTED: Final = 130
_NEWEST_COMMITS: Final = 3
_ROOT: Final = Path(__file__).parents[2]
_KEY_VARIABLE: Final = "PROVIDER_KEY"
_CALLED: Final = {REVIEW: "review", FEEDBACK: "composition"}


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
            require_ours(options.out)
            shown = _shown(options, Path(scratch))
            return anyio.run(_show, shown, options.out, Path(scratch))
    except KeyboardInterrupt:
        _say("stopped")
        return _INTERRUPTED
    except (StubError, OSError, ExceptionGroup) as error:
        faults = leaves(error)
        if not all(isinstance(fault, StubError | OSError) for fault in faults):
            raise
        _say(f"error: {faults[0]}")
        return _WRONG_USE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m driver.stub.demo", description="One review and its feedback.")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="where the result goes")
    parser.add_argument("--repository", type=Path, help="a local git repository; by default the one around here")
    parser.add_argument("--range", default="", help="what to review of it, as in main..topic")
    parser.add_argument("--provider-url", default="", help=f"a real provider; its key is taken from {_KEY_VARIABLE}")
    parser.add_argument("--model", default="", help="the provider's model")
    parser.add_argument("--wire", default="responses", choices=("responses", "chat", "messages"))
    return parser


def _shown(options: argparse.Namespace, scratch: Path) -> Shown:
    """Decide what is reviewed. Raises StubError for what the person got wrong."""
    scenario = load_scenario("compose")
    repository, wanted = options.repository, options.range
    if repository is not None and not wanted:
        raise StubError("RANGE: which commits are to be reviewed? As in RANGE=main..topic or RANGE=HEAD~3..HEAD")
    if repository is None:
        repository, wanted = _own_commits(scratch) or _example(scratch)
    workspace = WorkspaceTable(repository=repository.absolute(), range=wanted, title=f"The commits {wanted}")
    update: dict[str, object] = {"workspace": workspace}
    provider = _provider(options)
    if provider is not None:
        update["model"] = scenario.model.model_copy(update={"id": options.model, "wire": options.wire})
    model = f"{options.model} at {options.provider_url}" if provider else "the scripted model, offline"
    return Shown(scenario.model_copy(update=update), provider, f"{wanted} of {repository.absolute()}, by {model}")


def _provider(options: argparse.Namespace) -> ProviderSettings | None:
    if not options.provider_url:
        return None
    if not options.model:
        raise StubError("MODEL: is required with PROVIDER_URL")
    key = os.environ.get(_KEY_VARIABLE, "")
    return provider_settings(options.provider_url, key, url_from="PROVIDER_URL", key_from=_KEY_VARIABLE)


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
    async with interruptible() as interrupt, running_stub(shown.scenario, provider=shown.provider) as stub:
        fault = None
        if not interrupt.asked:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_tell_refusals, stub)
                fault = await drive(stub, scratch / "workspace", interrupt)
                tasks.cancel_scope.cancel("the driver has ended")
        if interrupt.asked:
            _say("stopped")
            return _INTERRUPTED
        if fault is not None:
            _say(f"error: {fault}")
            return _FAILED
        return await anyio.to_thread.run_sync(_tell, stub, out)


async def _tell_refusals(stub: Stub) -> None:
    """A provider that refuses is a matter for the person at the terminal, and told once."""
    told: set[str] = set()
    async for entry in stub.state.journal.follow():
        line = refusal_line(entry)
        if line and line not in told:
            told.add(line)
            _say(f"error: {line}")


def _tell(stub: Stub, out: Path) -> int:
    review, *compositions = stub.state.runs
    files = _tell_run(stub, review, out, REVIEW, read_review)
    for composition in compositions:
        files += _tell_run(stub, composition, out, FEEDBACK, read_feedback)
    if not compositions:
        remove_result(out, FEEDBACK)
        if review.outcome == "COMPLETED":
            _say("")
            _say("no observation was admitted, so there is no feedback to compose")
    if files:
        _say("")
        _say("files:")
    for file in files:
        _say(f"  {file}  {file.stat().st_size:,} bytes")
    return 0 if all(run.outcome == "COMPLETED" for run in stub.state.runs) else _FAILED


def _tell_run(stub: Stub, run: AgentRun, out: Path, name: str, read: Callable[[Path], list[str]]) -> list[Path]:
    """Show what a run left; its files, put into `out` below that name in place of earlier ones."""
    _say("")
    result = stub.state.results.newest(run.terms.id)
    exit = "" if result is None else f", exit {result.exit}"
    _say(f"the {_CALLED[name]} ended {run.outcome}{exit}")
    if run.outcome != "COMPLETED":
        reasons = [end.reason for id, _, end in stub.state.ends if id == run.terms.id and end.reason]
        _say(f"error: the {_CALLED[name]} failed: {reasons[-1] if reasons else 'no reason was told'}")
    if result is None:
        remove_result(out, name)
        return []
    files = replace_result(result.body, out, name)
    for line in read(out):
        _say(line)
    return files


def _say(line: str) -> None:
    sys.stdout.write(plain(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
