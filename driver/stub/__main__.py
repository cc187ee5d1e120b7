"""`python -m driver.stub`: a gateway on loopback for one scenario.

Prints one JSON line with `url`, `token` and `subject` when it is ready, and serves until SIGTERM or SIGINT.
What the person who starts it got wrong is one line on stderr, and exit 2.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio

from driver.stub.errors import StubError
from driver.stub.numbers import whole_number
from driver.stub.provider import ProviderSettings, provider_settings
from driver.stub.refusals import refusal_line
from driver.stub.scenario import Scenario, WorkspaceTable, bundled_scenarios, load_scenario
from driver.stub.server import Stub, running_stub

_WRONG_USE: Final = 2
_LAST_PORT: Final = 65_535


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stub; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        anyio.run(_run, options)
    except StubError as error:
        print(f"stub: {error}", file=sys.stderr)  # noqa: T201 # this is the program's own output
        return _WRONG_USE
    except OSError as error:
        print(f"stub: {error.strerror or error}", file=sys.stderr)  # noqa: T201 # as above
        return _WRONG_USE
    return 0


async def _run(options: argparse.Namespace) -> None:
    scenario = _scenario(options)
    _make_directory(options.results)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with running_stub(
            scenario,
            port=options.port,
            provider=_provider(options),
            results=options.results,
            state_file=options.state,
        ) as stub:
            ready = {"url": stub.url, "token": stub.token, "subject": scenario.subject}
            print(json.dumps(ready), flush=True)  # noqa: T201 # the one line that is promised
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_tell_refusals, stub)
                async for _ in signals:
                    break
                tasks.cancel_scope.cancel("told to stop")


async def _tell_refusals(stub: Stub) -> None:
    """A provider that refuses is a matter for the person at the terminal, and told once."""
    told: set[str] = set()
    async for entry in stub.state.journal.follow():
        line = refusal_line(entry)
        if line and line not in told:
            told.add(line)
            print(f"stub: {line}", file=sys.stderr, flush=True)  # noqa: T201 # as above


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m driver.stub", description="A gateway on loopback.")
    known = ", ".join(bundled_scenarios())
    parser.add_argument("--scenario", default="clean", help=f"a TOML file, or one of {known}")
    parser.add_argument("--repository", type=Path, help="a local git repository to review; needs --range")
    parser.add_argument("--range", help="what to review of it, as in main..topic")
    parser.add_argument("--directory", type=Path, help="a directory to serve as the workspace, as it is")
    parser.add_argument("--port", type=_port, default=0, help="the port to listen on; any free one by default")
    parser.add_argument("--results", type=Path, help="a directory for the uploaded results")
    parser.add_argument(
        "--state", type=Path, help="a file for the state, which a stub that is started again goes on from"
    )
    parser.add_argument("--provider-url", help="pass model calls on to this provider")
    parser.add_argument("--provider-key-env", metavar="NAME", help="the variable that holds the provider's key")
    parser.add_argument("--model", help="the model's id")
    parser.add_argument("--wire", choices=("responses", "chat", "messages"), help="the provider's wire")
    return parser


def _make_directory(results: Path | None) -> None:
    try:
        if results is not None:
            results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StubError(f"--results: {results}: {error.strerror}") from None


def _scenario(options: argparse.Namespace) -> Scenario:
    scenario = load_scenario(options.scenario)
    if (options.repository is None) != (options.range is None):
        raise StubError("--repository and --range belong together")
    if options.repository is not None and options.directory is not None:
        raise StubError("--directory and --repository exclude each other")
    update: dict[str, object] = {}
    if options.repository is not None or options.directory is not None:
        given = {"directory": options.directory, "repository": options.repository, "range": options.range}
        kept = {"practices": scenario.workspace.practices, "title": scenario.workspace.title}
        update["workspace"] = WorkspaceTable(**given, **kept).below(Path.cwd())
    model = {"id": options.model, "wire": options.wire}
    update["model"] = scenario.model.model_copy(update={k: v for k, v in model.items() if v})
    return scenario.model_copy(update=update)


def _provider(options: argparse.Namespace) -> ProviderSettings | None:
    if not options.provider_url:
        return None
    if not options.model:
        raise StubError("--model: is required with --provider-url")
    key = ""
    if options.provider_key_env:
        key = os.environ.get(options.provider_key_env, "")
        if not key:
            raise StubError(f"--provider-key-env: the variable {options.provider_key_env} is not set")
    return provider_settings(options.provider_url, key, url_from="--provider-url", key_from="--provider-key-env")


def _port(text: str) -> int:
    port = whole_number(text)
    if port is None or port > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to {_LAST_PORT}")
    return port


if __name__ == "__main__":
    sys.exit(main())
