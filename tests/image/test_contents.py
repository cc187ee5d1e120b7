"""What is in the image, and what is not."""

import importlib.util
import stat
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver import __version__
from tests.deploy.manifests import DEPLOY, built, named
from tests.image.building import CANARY, REVISION, TIMESTAMP, Builder, Image
from tests.image.container import MIB

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PLACES = {"workspace", "home/driver"}
SHARED = {"tmp", "var/tmp", "run/lock", "dev/shm"}
COMPILERS = {"cc", "c++", "gcc", "g++", "clang", "tcc", "ld", "as", "make", "rustc", "go"}
UNCHECKED = 1


@pytest.fixture(scope="module")
def members(image: Image) -> list[tuple[str, int, tuple[int, int], bytes]]:
    """Name, mode, owner and content of what our layers add, without what they remove."""
    return [
        (member.name, member.mode | (stat.S_IFDIR if member.isdir() else 0), (member.uid, member.gid), content)
        for member, content in image.members()
        if not Path(member.name).name.startswith(".wh.") and not member.issym()
    ]


def test_configuration(image: Image) -> None:
    """It starts the entrypoint with stops held back, as a user that is not root, and is stopped by SIGTERM."""
    assert image.config["Entrypoint"] == [
        "env", "--block-signal=TERM", "--block-signal=INT", "/usr/local/bin/entrypoint.sh",
    ]  # fmt: skip
    assert image.config.get("Cmd") is None
    assert (image.config["User"], image.config["WorkingDir"], image.config["StopSignal"]) == ("1000:0", "/", "SIGTERM")
    assert not image.config.get("Volumes")
    assert not image.config.get("ExposedPorts")
    assert set(image.environment) == {"PATH", "DRIVER_PYTHON", "HOME"}


def test_labels(image: Image) -> None:
    """The labels of the OCI say what it is, of which version, made from what."""
    labels = image.config["Labels"]
    prefix = "org.opencontainers.image"
    told = {name.removeprefix(f"{prefix}."): value for name, value in labels.items() if name.startswith(prefix)}
    assert told.pop("description")
    assert told == {
        "title": "agent-sandbox-driver",
        "licenses": "Apache-2.0",
        "version": __version__,
        "revision": REVISION,
        "base.name": "localhost/base",
    }


def test_size(image: Image, capsys: pytest.CaptureFixture[str]) -> None:
    """What is added to the base is at most 128 MiB, and at most 48 MiB as it is sent."""
    stored = sum(member.size for member, _ in image.members())
    sent = sum(layer.stat().st_size for layer in image.layers)
    with capsys.disabled():
        print(f"\nthe image adds {stored / MIB:.0f} MiB to its base, {sent / MIB:.0f} MiB compressed")  # noqa: T201
    assert stored <= 128 * MIB
    assert sent <= 48 * MIB


def test_no_secret(image: Image, members: list[tuple[str, int, tuple[int, int], bytes]]) -> None:
    """Nothing of the secrets of the build is in a layer or in the configuration, and no key is."""
    canary = CANARY.encode()
    assert canary not in str(image.description).encode()
    assert [name for name, _, _, content in members if canary in content] == []
    assert [
        name for name, _, _, content in members if content.startswith(b"-----BEGIN") and b"PRIVATE" in content
    ] == []


def test_nothing_of_the_installation_stays(members: list[tuple[str, int, tuple[int, int], bytes]]) -> None:
    """No package lists, archives, caches, logs, wheels or temporary files; no installer in the driver's libraries."""
    left = ("var/lib/apt/lists/", "var/cache/apt/", "var/log/", "root/", "tmp/", "src/", "build/", "wheels/", "run/")
    assert [name for name, _, _, _ in members if name.startswith(left)] == []
    assert [name for name, _, _, _ in members if name.endswith((".whl", ".deb", ".tar.gz"))] == []
    assert [name for name, _, _, _ in members if name.startswith("opt/driver/") and "/site-packages/pip" in name] == []


def test_no_compiler(root: Path, image: Image) -> None:
    """No compiler, linker or make is on the path."""
    found = {name for place in image.environment["PATH"].split(":") for name in _names(root / place.lstrip("/"))}
    assert "git" in found
    assert "rg" in found
    assert found & COMPILERS == set()
    assert [name for name in found if name.startswith(("gcc-", "g++-", "x86_64-linux-gnu-gcc"))] == []


def test_nothing_can_be_written(members: list[tuple[str, int, tuple[int, int], bytes]]) -> None:
    """All that we add is root's, for nobody else to write, but for the workspace and the home."""
    open_to = {name: mode & 0o7777 for name, mode, _, _ in members if mode & 0o022}
    assert open_to.pop("tmp", 0o1777) == 0o1777
    assert open_to == dict.fromkeys(PLACES, 0o770)
    owners = {name: owner for name, _, owner, _ in members if owner[0] != 0}
    assert owners == dict.fromkeys(PLACES, (1000, 0))


def test_whole_file_system(root: Path) -> None:
    """Neither the base nor we leave set-uid or set-gid programs, capabilities of files, or what everybody can write."""
    special, shared = [], set()
    for path in _below(root):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
            special.append(path)
        if mode & stat.S_IWOTH and not stat.S_ISLNK(mode) and not stat.S_ISCHR(mode):
            shared.add(str(path.relative_to(root)))
    assert special == []
    assert shared <= SHARED
    listed = subprocess.run(["getcap", "-r", str(root)], check=True, capture_output=True, text=True)
    assert listed.stdout == ""


def test_compiled(root: Path) -> None:
    """Each module of the driver has its code beside it, for this interpreter, and unbound to the time of its source."""
    version = sorted((root / "opt/driver/lib").glob("python3.*"))[0].name.replace("python", "cpython-").replace(".", "")
    sources = sorted((root / "opt/driver").rglob("*.py"))
    assert len(sources) > 300
    for source in sources:
        code = source.parent / "__pycache__" / f"{source.stem}.{version}.pyc"
        _, flags = struct.unpack("<4sL", code.read_bytes()[:8])
        assert flags == UNCHECKED, code
        assert code.read_bytes()[8:16] == importlib.util.source_hash(source.read_bytes())


def test_built_twice(workshop: Builder, image: Image) -> None:
    """Built again from nothing but the base, it is the same to the last byte."""
    again = workshop.build("again")
    ours, theirs = list(image.members()), list(again.members())
    assert [member.name for member, _ in ours] == [member.name for member, _ in theirs]
    differing = [
        one.name
        for (one, before), (other, after) in zip(ours, theirs, strict=True)
        if one.get_info() != other.get_info() or before != after
    ]
    assert differing == []
    assert again.digests == image.digests
    assert again.manifest["config"]["digest"] == image.manifest["config"]["digest"]
    assert {member.mtime for member, _ in ours} == {TIMESTAMP}


def test_as_the_manifests_have_it(image: Image, root: Path) -> None:
    """deploy/ mounts what the image has, runs the user that owns it, and leaves the start to it."""
    pod = named(built(DEPLOY / "base"), "SandboxTemplate")["spec"]["podTemplate"]["spec"]
    (container,) = pod["containers"]
    assert not container.keys() & {"command", "args", "workingDir"}
    uid = pod["securityContext"]["runAsUser"]
    assert image.config["User"].partition(":")[0] == str(uid)
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted == {"/tmp"} | {f"/{place}" for place in PLACES}
    for place in PLACES:
        assert (root / place).stat().st_uid == uid
    given = {variable["name"]: variable["value"] for variable in container["env"]}
    assert given["HOME"] == image.environment["HOME"]
    assert f"agent-sandbox-driver:{__version__}" in container["image"]


def _names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()] if directory.is_dir() else []


def _below(root: Path) -> Iterator[Path]:
    for path in root.iterdir():
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)
