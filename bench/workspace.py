"""What a workspace costs: the driver's download, check and unpacking against `curl | tar -x`, which checks nothing.

Everything lies in memory-backed storage, and the ways take turns. The receipt goes to `bench-out/`; the last line is
one JSON object with the figures that have a bar.
"""

import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

ROUNDS: Final = 5
RECEIPTS: Final = Path("bench-out")
_MEMORY: Final = Path("/dev/shm")
_MIB: Final = 1 << 20
_FILES_PER_DIRECTORY: Final = 40
_HTTPX: Final = """
import hashlib, httpx, sys, tarfile
class Hashed:
    def __init__(self, chunks):
        self.chunks, self.rest, self.sha256 = chunks, b"", hashlib.sha256()
    def read(self, size):
        while len(self.rest) < size and (chunk := next(self.chunks, b"")):
            self.sha256.update(chunk)
            self.rest += chunk
        data, self.rest = self.rest[:size], self.rest[size:]
        return data
with httpx.stream("GET", sys.argv[1], trust_env=False) as response:
    with tarfile.open(fileobj=Hashed(response.iter_raw()), mode="r|") as archive:
        archive.extractall(sys.argv[2], filter="data")
"""


@dataclass(frozen=True)
class Profile:
    """An archive of `files` files with `bytes` of content in all."""

    files: int
    bytes: int


PROFILES: Final = {"large": Profile(20_000, 512 * _MIB), "small": Profile(5_000, 64 * _MIB)}


def make_archive(profile: Profile, path: Path) -> None:
    """Files of random sizes around the mean, in directories of 40, as a repository has them."""
    chance = random.Random(7)
    mean = profile.bytes // profile.files
    block = chance.randbytes(4 * mean)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number in range(profile.files):
            above = f"repos/reviewed/d{number // _FILES_PER_DIRECTORY:04d}"
            if number % _FILES_PER_DIRECTORY == 0:
                directory = tarfile.TarInfo(above)
                directory.type, directory.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(directory)
            entry = tarfile.TarInfo(f"{above}/f{number:05d}.py")
            entry.size = chance.randint(mean // 2, mean + mean // 2)
            archive.addfile(entry, BytesIO(block[: entry.size]))


@contextmanager
def served(archive: Path) -> Iterator[tuple[str, str]]:
    """The address and the digest of a served archive."""
    command = [sys.executable, "-m", "bench.archive_server", str(archive)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port, digest = process.stdout.readline().split()
        yield f"http://127.0.0.1:{port}", digest
    finally:
        process.terminate()
        process.wait()


def timed(work: Callable[[], object]) -> float:
    """The seconds that `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def measure(profile: Profile, scratch: Path) -> dict[str, Any]:
    """All ways of one archive, in turn."""
    archive, root = scratch / "archive.tar", scratch / "root"
    make_archive(profile, archive)
    ways: dict[str, list[float]] = {"curl | tar": [], "httpx + tarfile": [], "driver": [], "rm -rf": [], "empty": []}
    driver: list[dict[str, float]] = []
    with served(archive) as (url, digest):
        for _ in range(ROUNDS):
            root.mkdir()
            ways["curl | tar"].append(timed(lambda: run("sh", "-c", f"curl -s {url} | tar -x -C {root}")))
            ways["rm -rf"].append(timed(lambda: run("rm", "-rf", str(root))))
            root.mkdir()
            ways["httpx + tarfile"].append(timed(lambda: run(sys.executable, "-c", _HTTPX, url, str(root))))
            shutil.rmtree(root)
            root.mkdir()
            driver.append(prepare(url, digest, archive.stat().st_size, root))
            ways["driver"].append(driver[-1]["seconds"])
            ways["empty"].append(emptied(root))
            run("rm", "-rf", str(root))
    archive.unlink()
    return {"seconds": ways, "driver": driver}


def prepare(url: str, digest: str, size: int, root: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.workspace_process", url, digest, str(size), str(root)]
    figures: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return figures


def emptied(root: Path) -> float:
    """The seconds that emptying takes, in a process that has done nothing else."""
    code = (
        "import sys, time; from pathlib import Path; from driver.workspace.empty import empty; "
        "t = time.perf_counter(); empty(Path(sys.argv[1])); print(time.perf_counter() - t)"
    )
    return float(subprocess.run([sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE, check=True).stdout)


def bars(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The figures that have a bar."""

    def ratio(name: str, way: str, peer: str) -> float:
        seconds = results[name]["seconds"]
        quotient: float = statistics.median(seconds[way]) / statistics.median(seconds[peer])
        return round(quotient, 3)

    driven = [figures for result in results.values() for figures in result["driver"]]
    return {
        "large_ratio": ratio("large", "driver", "curl | tar"),
        "small_ratio": ratio("small", "driver", "curl | tar"),
        "empty_ratio": ratio("large", "empty", "rm -rf"),
        "peak_mib": round(max(figures["peak_mib"] for figures in driven), 1),
        "loop_lateness_max_ms": round(max(figures["lateness_max_ms"] for figures in driven), 1),
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """The median of each way as a Markdown table."""
    lines = ["| archive | way | seconds | MiB/s |", "|---" * 4 + "|"]
    for name, result in results.items():
        for way, seconds in result["seconds"].items():
            median = statistics.median(seconds)
            lines.append(f"| {name} | {way} | {median:.3f} | {PROFILES[name].bytes / _MIB / median:,.0f} |")
    return "\n".join(lines)


def main() -> None:
    with TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None, prefix="bench-") as scratch:
        results = {name: measure(profile, Path(scratch)) for name, profile in PROFILES.items()}
    figures = bars(results)
    text = table(results)
    RECEIPTS.mkdir(exist_ok=True)
    machine = {"cpu": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    receipt = {"machine": machine, "rounds": ROUNDS, "figures": figures, "results": results}
    (RECEIPTS / "workspace.json").write_text(json.dumps(receipt, indent=1) + "\n", "utf-8")
    (RECEIPTS / "workspace.md").write_text(f"{text}\n\n```json\n{json.dumps(figures, indent=1)}\n```\n", "utf-8")
    sys.stdout.write(f"{text}\n{json.dumps(figures)}\n")


if __name__ == "__main__":
    main()
