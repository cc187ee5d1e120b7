"""What the door costs: the same client straight to a fake provider, through the door, and through LiteLLM.

The three take turns, so that a busy machine is busy for all of them. The receipt goes to `bench-out/`, as JSON with
every sample and as Markdown; the last line is one JSON object with the figures that have a bar.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.litellm import litellm_proxy
from bench.load import PROFILES, Profile

ROUNDS: Final = 3
RECEIPTS: Final = Path("bench-out")
_LOAD_SECONDS: Final = 120


@dataclass
class Samples:
    """All calls of one way in one profile, over all rounds."""

    seconds: list[float] = field(default_factory=list)
    frames_per_second: list[float] = field(default_factory=list)
    answered: int = 0
    refused: int = 0
    wrong: int = 0
    process: dict[str, Any] = field(default_factory=dict)

    def add(self, profile: Profile, made: dict[str, Any]) -> None:
        """One run of the load client. A call is wrong when it is neither whole nor honestly refused."""
        frames = 0
        for call in made["calls"]:
            if call["status"] == 200 and call["ended"] and call["bytes"] > profile.frames * profile.size:
                self.answered += 1
                self.seconds.append(call["seconds"])
                frames += profile.frames
            elif call["status"] == 429:
                self.refused += 1
            else:
                self.wrong += 1
        self.frames_per_second.append(frames / made["seconds"])

    def quantile(self, share: float) -> float:
        """A quantile of the whole calls, in seconds."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")

    def figures(self) -> dict[str, Any]:
        return {
            "p50_ms": round(self.quantile(0.5) * 1000, 1),
            "p95_ms": round(self.quantile(0.95) * 1000, 1),
            "max_ms": round(max(self.seconds, default=0.0) * 1000, 1),
            "frames_per_second": round(statistics.median(self.frames_per_second)),
            "answered": self.answered,
            "refused": self.refused,
            "wrong": self.wrong,
        }


@contextmanager
def provider() -> Iterator[str]:
    """The address of a fake provider."""
    process = subprocess.Popen([sys.executable, "-m", "bench.provider"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.terminate()
        process.wait()


class DoorProcess:
    """One door, for one profile; its figures come when it is closed."""

    def __init__(self, gateway: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.door_process", gateway],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        ready = json.loads(self._process.stdout.readline())
        self.url: str = ready["url"]
        self.key: str = ready["key"]

    def close(self) -> dict[str, Any]:
        output, _ = self._process.communicate("", timeout=60)
        figures: dict[str, Any] = json.loads(output)
        return figures


def load(url: str, key: str, name: str) -> dict[str, Any]:
    """One run of the load client, in a process of its own."""
    command = [sys.executable, "-m", "bench.load", f"{url}/v1/responses", key, name]
    output = subprocess.run(command, capture_output=True, check=True, timeout=_LOAD_SECONDS).stdout
    made: dict[str, Any] = json.loads(output)
    return made


def measure(name: str, address: str, litellm: str | None) -> dict[str, Samples]:
    """All ways of one profile, in turn."""
    profile = PROFILES[name]
    ways = {"direct": Samples(), "door": Samples()} | ({"litellm": Samples()} if litellm else {})
    door = DoorProcess(address)
    for _ in range(ROUNDS):
        ways["direct"].add(profile, load(address, "none", name))
        ways["door"].add(profile, load(door.url, door.key, name))
        if litellm:
            ways["litellm"].add(profile, load(litellm, "sk-bench", name))
    ways["door"].process = door.close()
    return ways


def bars(results: dict[str, dict[str, Samples]]) -> dict[str, Any]:
    """The figures that have a bar."""

    def added(way: str) -> float:
        return results["team"][way].quantile(0.5) - results["team"]["direct"].quantile(0.5)

    def p95_ratio(name: str) -> float:
        return round(results[name]["door"].quantile(0.95) / results[name]["direct"].quantile(0.95), 3)

    def frames(way: str) -> float:
        return statistics.median(results["tokens"][way].frames_per_second)

    burst = results["burst"]["door"].process
    doors = [ways["door"] for ways in results.values()]
    figures: dict[str, Any] = {
        "team_p50_added_ms": round(added("door") * 1000, 1),
        "team_p95_ratio": p95_ratio("team"),
        "burst_p95_ratio": p95_ratio("burst"),
        "tokens_fps_ratio": round(frames("door") / frames("direct"), 3),
        "loop_lateness_max_ms": round(burst["lateness"][-1] * 1000, 1),
        "door_peak_mib": round(burst["peak_mib"], 1),
        "not_returned": sum(door.process["not_returned"] for door in doors),
        "wrong_answers": sum(door.wrong for door in doors),
    }
    if "litellm" in results["team"]:
        figures["team_p50_added_to_litellm"] = round(added("door") / added("litellm"), 3)
        figures["tokens_fps_to_litellm"] = round(frames("door") / frames("litellm"), 1)
    return figures


def receipt(results: dict[str, dict[str, Samples]], figures: dict[str, Any]) -> dict[str, Any]:
    """Everything that somebody needs who wants to compare with another run."""
    revision = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": revision,
        "machine": {"cpu": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "settings": {"transports": 32, "queue": 128, "wait_seconds": 30, "rounds": ROUNDS},
        "profiles": {name: PROFILES[name].__dict__ for name in results},
        "figures": figures,
        "ways": {
            name: {
                way: samples.figures() | {"process": samples.process, "samples_seconds": samples.seconds}
                for way, samples in ways.items()
            }
            for name, ways in results.items()
        },
    }


def table(results: dict[str, dict[str, Samples]]) -> str:
    """The figures of each profile and way as a Markdown table."""
    lines = ["| profile | way | p50 ms | p95 ms | max ms | frames/s | answered | refused | wrong |", "|---" * 9 + "|"]
    for name, ways in results.items():
        for way, samples in ways.items():
            lines.append(f"| {name} | {way} | " + " | ".join(str(value) for value in samples.figures().values()) + " |")
    return "\n".join(lines)


def main() -> None:
    with provider() as address, litellm_proxy(address) as litellm:
        if litellm is None:
            sys.stdout.write("LiteLLM is not installed here, so it is left out (make bench-litellm)\n")
        results = {name: measure(name, address, litellm) for name in PROFILES}
    figures = bars(results)
    text = table(results)
    RECEIPTS.mkdir(exist_ok=True)
    (RECEIPTS / "door.json").write_text(json.dumps(receipt(results, figures), indent=1) + "\n", "utf-8")
    (RECEIPTS / "door.md").write_text(f"{text}\n\n```json\n{json.dumps(figures, indent=1)}\n```\n", "utf-8")
    sys.stdout.write(f"{text}\n{json.dumps(figures)}\n")


if __name__ == "__main__":
    main()
