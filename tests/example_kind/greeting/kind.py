"""The runner: it works beside the token, so it does as little as it can and leaves the rest to its program."""

import sys
from pathlib import Path

from driver.kind import HeldRun, Outcome

PROGRAM = [sys.executable, "-I", str(Path(__file__).with_name("greet.py"))]


class Greeting:
    """Runs the program in the workspace, and delivers what that left in `out/`."""

    async def run(self, held: HeldRun) -> Outcome:
        exit = 1
        with held.work() as work:  # left early at the work deadline, or when the driver is stopped
            await held.workspace.prepare()
            async with held.door():  # programs started with door=True can reach the model
                end = await held.programs.run(PROGRAM, cwd=held.workspace.layout.root, door=True)
            exit = end.exit
        if work.stopped:
            exit = work.stopped.exit
        await held.results.deliver(exit)  # packs out/ and uploads it
        if exit == 0:
            return Outcome("COMPLETED", exit=0)
        return Outcome("FAILED", exit=exit, reason="could not greet")
