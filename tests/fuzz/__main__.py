"""`python -m tests.fuzz CORPUS... [-max_total_time=SECONDS]`: archives made by libFuzzer, guided by coverage.

Needs atheris; `make fuzz` installs it in a virtual environment of its own. The options are libFuzzer's.
"""

import os
import sys
import tempfile
from pathlib import Path

import atheris

from tests.driver.workspace.archives import FAST
from tests.fuzz.mutation import mutated

with atheris.instrument_imports(include=["driver.workspace", "tests.driver.workspace.rules"]):
    from tests.fuzz.target import Place


def _mutator(data: bytes, most: int, seed: int) -> bytes:
    return mutated(bytes(data), most, seed, atheris.Mutate)


def _fuzz(parent: str) -> None:
    os.umask(0o077)
    place = Place(Path(parent))
    atheris.Setup(sys.argv, lambda data: place.try_archive(data), custom_mutator=_mutator)
    atheris.Fuzz()


def main() -> int:
    with tempfile.TemporaryDirectory(dir=FAST, prefix="fuzz-") as parent:
        # libFuzzer ends its process without coming back, so somebody else has to tidy up.
        child = os.fork()
        if child == 0:
            _fuzz(parent)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
