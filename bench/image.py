"""How long a container of the image takes to its first pull, and what it costs while it waits for work.

The peer is the script of bench.start in the same container. Both are started in turn by runc. Needs root, and what
`make image-test` needs.
"""

import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import psutil

from bench.start import IDLE_SECONDS, NO_WORK, PEER, ROUNDS, TAKEN_BACK, driver_environment, gateway
from bench.start import seconds_to_first_byte as seconds
from tests.image import machine
from tests.image.building import builder
from tests.image.container import ANYBODY, MIB, Container

_PYTHON: Final = "/opt/driver/bin/python3"


def first_pull(container: Container) -> tuple[float, float, float]:
    """Median seconds of the driver, of the peer, and of a container that does nothing."""
    ours, peers, nothing = [], [], []
    for _ in range(ROUNDS):
        with gateway(TAKEN_BACK) as server:
            environment = driver_environment(server.port, "/workspace")
            ours.append(seconds(container.command_line(environment), server, environment))
        with gateway(TAKEN_BACK) as server:
            peer = container.running(_PYTHON, "-I", "-c", PEER, f"http://127.0.0.1:{server.port}/")
            peers.append(seconds(peer.command_line({}), server, {}))
        started = time.perf_counter()
        subprocess.run(container.running("true").command_line({}), check=True)
        nothing.append(time.perf_counter() - started)
    return statistics.median(ours), statistics.median(peers), statistics.median(nothing)


def idle(container: Container) -> tuple[float, float, float]:
    """MiB of the driver and MiB that its cgroup is charged with, and its share of a core, while it finds no work."""
    with gateway(NO_WORK) as server:
        command = container.command_line(driver_environment(server.port, "/workspace"))
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            server.first_byte.wait(30)
            time.sleep(2.0)
            (seen,) = psutil.Process(process.pid).children()
            before = seen.cpu_times()
            time.sleep(IDLE_SECONDS)
            after = seen.cpu_times()
            used = after.user + after.system - before.user - before.system
            return seen.memory_info().rss / MIB, _charged(command[-1]) / MIB, used / IDLE_SECONDS
        finally:
            process.terminate()
            process.wait()


def _charged(name: str) -> int:
    """Bytes that the container's cgroup is charged with, as either version of cgroups tells it."""
    places = [
        Path("/sys/fs/cgroup", name, "memory.current"),
        Path("/sys/fs/cgroup/memory", name, "memory.usage_in_bytes"),
    ]
    return int(next(place for place in places if place.exists()).read_text())


def main() -> None:
    if problems := machine.problems():
        sys.exit("\n".join(problems))
    with TemporaryDirectory(prefix="bench-") as place, builder(Path(place) / "workshop") as workshop:
        workshop.make_base()
        image = workshop.build("image")
        root = workshop.mounted("image")
        container = Container(image, root, Path(place) / "containers", ANYBODY)
        stored = sum(member.size for member, _ in image.members())
        sent = sum(layer.stat().st_size for layer in image.layers)
        ours, peer, nothing = first_pull(container)
        resident, charged, share = idle(replace(container, place=Path(place) / "idle"))
    sys.stdout.write(f"image: {stored / MIB:.0f} MiB over its base, {sent / MIB:.0f} MiB compressed\n")
    sys.stdout.write(f"first pull: {ours * 1000:.0f} ms, the peer's first request: {peer * 1000:.0f} ms, ")
    sys.stdout.write(f"a container that does nothing: {nothing * 1000:.0f} ms\n")
    sys.stdout.write(f"idle: {resident:.1f} MiB, {charged:.1f} MiB charged to the container, {share:.2%} of a core\n")
    figures = {
        "image_mib": round(stored / MIB),
        "image_first_pull_ratio": round(ours / peer, 3),
        "image_idle_rss_mib": round(resident, 1),
        "image_idle_charged_mib": round(charged, 1),
        "image_idle_cpu": round(share, 5),
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
