"""The measuring program with a CLI in its sessions: `python -m kinds.programs.agents NAME` (docs/agents.md).

It needs what `kinds.programs.measure` needs, leaves the same files and ends with the same exits.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kinds.programs import starting

if TYPE_CHECKING:
    from kinds.programs.agents.site import Cli


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit."""
    started = starting.hold_back_stop()
    from kinds.programs.agents.known import AGENTS
    from kinds.programs.envelope import EnvelopeError

    parser = argparse.ArgumentParser(prog="python -m kinds.programs.agents", description=__doc__)
    parser.add_argument("agent", choices=sorted(AGENTS))
    parser.add_argument("--cli", help="the CLI, where it is not on the PATH")
    parser.add_argument("--wire", choices=("responses", "chat", "messages"), help="one that the CLI speaks")
    parser.add_argument("--task", default="task.json", help="the task envelope, relative to the workspace")
    parser.add_argument("--context-tokens", type=starting.tokens, help="how much the model takes at once")
    parser.add_argument("--at-once", type=int, default=1, help="how many CLIs run side by side")
    options = parser.parse_args(argv)
    problem = "the task envelope is not valid"
    return starting.ended("measuring", lambda: _measure(options, started), EnvelopeError, problem)


def _measure(options: argparse.Namespace, started: float) -> int:
    from kinds.programs.envelope import load

    envelope = load(Path.cwd(), options.task)

    from kinds.programs.agents.cli_session import sessions
    from kinds.programs.errors import InputsUnusable
    from kinds.programs.heap import SessionHeap
    from kinds.programs.measurement import Measurement
    from kinds.programs.model import Waits

    cli = _cli(options)
    options.wire = cli.wire
    around = starting.around(options, started)
    memory = cli.agent.memory
    try:
        heap = SessionHeap(memory * options.at_once, memory)
    except ValueError:
        raise InputsUnusable(f"--at-once must be above 0, not {options.at_once}") from None
    home = Path(os.environ.get("HOME", "work/home")).absolute()
    measurement = Measurement(around, envelope, heap, Waits(wall=time.time), sessions(cli, home))
    return starting.watched(around.work_seconds, measurement.run, measurement.report.write)


def _cli(options: argparse.Namespace) -> "Cli":
    from kinds.programs.agents.known import AGENTS
    from kinds.programs.agents.site import Cli
    from kinds.programs.errors import InputsUnusable

    agent = AGENTS[options.agent]
    wire = options.wire or agent.wires[0]
    if wire not in agent.wires:
        raise InputsUnusable(f"{options.agent} does not speak the wire {wire}, but {', '.join(agent.wires)}")
    path = shutil.which(options.cli or agent.command)
    if path is None:
        where = options.cli or f"{agent.command} on the PATH"
        raise InputsUnusable(f"there is no {where}; install it, or name it with --cli")
    return Cli(options.agent, agent, os.path.abspath(path), wire)


if __name__ == "__main__":
    sys.exit(main())
