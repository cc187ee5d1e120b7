"""`agent-sandbox-driver check` finds each thing that keeps a driver from working, and says what to do."""

import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
import trustme

from driver.stub.server import running_stub
from tests.conftest import Disk
from tests.e2e.checking import TOKEN, check, gateway, jwt
from tests.e2e.contained import contained, environment, needs_root, pid_1
from tests.e2e.driving import ROOT, closed_port, driving, open_port, scenario, shell

pytestmark = pytest.mark.anyio

GIB = 1 << 30


@pytest.fixture
def base(tmp_path: Path) -> Iterator[dict[str, str | None]]:
    """Settings that are right, with a target that is closed and a gateway that answers."""
    with closed_port() as closed, gateway() as url:
        yield {
            "HEPHAESTUS_GATEWAY_URL": url,
            "DRIVER_WORKSPACE": str(tmp_path),
            "DRIVER_ISOLATION_TARGET": f"127.0.0.1:{closed}",
            "DRIVER_PROGRAM_DISK": "1MiB",
        }


async def test_all_is_well_and_nothing_was_pulled(base: dict[str, str | None]) -> None:
    """With the real stub nothing fails, its run stays where it is, and it was sent no token."""
    async with running_stub(scenario()) as stub:
        checked = await check(base | {"HEPHAESTUS_GATEWAY_URL": stub.url, "HEPHAESTUS_SANDBOX_TOKEN": stub.token})
        assert [run.state for run in stub.state.runs] == ["QUEUED"]
        paths = [entry.fields.get("path") for entry in stub.state.journal.named("request.received")]
        assert not [path for path in paths if "runs" in str(path)]
    assert (checked.code, checked.failed()) == (0, [])
    areas = {line["area"] for line in checked.findings}
    assert areas == {
        *("kernel", "settings", "token", "gateway", "clock", "isolation", "limits", "places", "commands"),
    }
    assert checked.line("gateway", "answer")["level"] == "ok"
    assert checked.line("clock", "difference")["level"] == "ok"


async def test_every_line_that_is_not_well_says_what_to_do(base: dict[str, str | None]) -> None:
    """Whatever is found wrong has an advice, and what is right has none."""
    checked = await check(base | {"HEPHAESTUS_SANDBOX_TOKEN": None, "DRIVER_WORKSPACE": "/proc/no", "PATH": "/bin"})
    assert {line["level"] for line in checked.findings} >= {"ok", "fail"}
    for line in checked.findings:
        assert bool(line.get("advice")) == (line["level"] != "ok"), line


WRONG = {
    "HEPHAESTUS_GATEWAY_URL": "ftp://nowhere",
    "HEPHAESTUS_SANDBOX_TOKEN": "short",
    "HEPHAESTUS_GATEWAY_CA": "/not/there",
    "DRIVER_WORKSPACE": "relative",
    "DRIVER_ISOLATION": "perhaps",
    "DRIVER_ISOLATION_TARGET": "name:443",
    "DRIVER_ISOLATION_WINDOW": "never",
    "DRIVER_POLL_MAX": "0.5",
    "DRIVER_STOP_GRACE": "0",
    "DRIVER_MODEL_STORAGE": "1",
    "DRIVER_SESSION_SIZE": "1GiB",
    "DRIVER_PROGRAM_REVIEW": "'open",
    "DRIVER_PROGRAM_MEMORY": "much",
    "DRIVER_LOG": "xml",
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_setting(base: dict[str, str | None], name: str) -> None:
    """It is named, the exit is 78, and all the rest is looked at all the same."""
    checked = await check(base | {name: WRONG[name]}, "--json", "--quick")
    assert checked.code == 78
    assert ("settings", name) in checked.failed()
    assert checked.line("places", "HOME")
    assert checked.line("commands", "git")["level"] == "ok"


async def test_every_setting_wrong_at_once(base: dict[str, str | None]) -> None:
    """Each of them is named."""
    wrong = WRONG | {"DRIVER_POLL_MIN": "soon", "DRIVER_SESSION_HEAP": "0"}
    del wrong["DRIVER_ISOLATION_TARGET"]  # it is not looked at where the gate has no mode
    checked = await check(base | wrong)
    # What is measured against another setting can only be told once that one is right.
    assert {name for area, name in checked.failed() if area == "settings"} >= wrong.keys() - {
        *("DRIVER_POLL_MAX", "DRIVER_SESSION_SIZE"),
    }
    assert checked.code == 78


@pytest.mark.parametrize(("name", "value"), [("DRIVER_POLL_MIN", "10"), ("DRIVER_SESSION_HEAP", "1MiB")])
async def test_settings_that_do_not_fit_together(base: dict[str, str | None], name: str, value: str) -> None:
    """The pair is told, whichever of the two was set."""
    checked = await check(base | {name: value}, "--json", "--quick")
    assert checked.code == 78
    assert len(checked.failed()) == 1


@pytest.mark.parametrize(
    "broken",
    [
        {"HEPHAESTUS_SANDBOX_TOKEN": None},
        {"HEPHAESTUS_SANDBOX_TOKEN_FILE": "/etc/hostname"},
        {"HEPHAESTUS_SANDBOX_TOKEN": "x" * 80_000},
    ],
    ids=["none", "two", "too long"],
)
async def test_no_token(base: dict[str, str | None], broken: dict[str, str | None]) -> None:
    """Outside of a sandbox a token has to be there, once, and of a length that can be."""
    checked = await check(base | broken, "--json", "--quick")
    assert checked.code == 78
    assert ("settings", "HEPHAESTUS_SANDBOX_TOKEN") in checked.failed()


async def test_a_gate_that_a_pod_may_not_turn_off(base: dict[str, str | None]) -> None:
    """In a Pod `off` is wrong, and nothing is said of probes then."""
    checked = await check(base | {"DRIVER_ISOLATION": "off", "KUBERNETES_SERVICE_HOST": "10.96.0.1"})
    assert checked.failed() == [("settings", "DRIVER_ISOLATION")]
    assert not [line for line in checked.findings if line["area"] == "isolation"]


async def test_a_misspelt_setting(base: dict[str, str | None]) -> None:
    """A name that nobody reads is a warning with the name that was meant."""
    checked = await check(base | {"DRIVER_STOPGRACE": "5"}, "--json", "--quick")
    line = checked.line("settings", "DRIVER_STOPGRACE")
    assert (line["level"], line["advice"]) == ("warn", "did you mean DRIVER_STOP_GRACE?")
    assert checked.code == 0


async def test_no_gateway(base: dict[str, str | None]) -> None:
    """A gateway that refuses is exit 69, and a closed target then proves nothing."""
    with closed_port() as closed:
        checked = await check(base | {"HEPHAESTUS_GATEWAY_URL": f"http://127.0.0.1:{closed}"})
    assert checked.code == 69
    assert checked.failed() == [("gateway", "connection")]
    probes = [line for line in checked.findings if line["area"] == "isolation"]
    assert len(probes) == 3
    assert all(line["level"] == "warn" and "proves nothing" in line["found"] for line in probes)


@pytest.mark.slow
async def test_a_gateway_that_never_answers(base: dict[str, str | None]) -> None:
    """The check ends all the same, and says so."""
    with open_port() as silent:
        checked = await check(base | {"HEPHAESTUS_GATEWAY_URL": f"http://127.0.0.1:{silent}"})
    assert checked.code == 69
    assert "no answer in time" in next(line["found"] for line in checked.findings if line["level"] == "fail")


@pytest.mark.parametrize(("status", "level"), [(401, "ok"), (404, "ok"), (302, "warn"), (503, "warn")])
async def test_what_the_gateway_answers(base: dict[str, str | None], status: int, level: str) -> None:
    """Any answer shows that it is there; one that a driver could not work with is a warning."""
    with gateway(status) as url:
        checked = await check(base | {"HEPHAESTUS_GATEWAY_URL": url})
    assert checked.line("gateway", "answer")["level"] == level
    assert checked.code == 0


async def test_clocks_that_differ(base: dict[str, str | None]) -> None:
    """Minutes between the clocks are a warning that says which way."""
    with gateway(behind=600) as url:
        checked = await check(base | {"HEPHAESTUS_GATEWAY_URL": url})
    line = checked.line("clock", "difference")
    assert line["level"] == "warn"
    assert line["found"].endswith("s ahead of the gateway")


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA(organization_name="Check Authority")


def served_by(authority: trustme.CA, host: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    return context


async def test_a_certificate(base: dict[str, str | None], authority: trustme.CA, tmp_path: Path) -> None:
    """Its issuer and the rest of its time are told."""
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    with gateway(tls=served_by(authority)) as url:
        checked = await check(base | {"HEPHAESTUS_GATEWAY_URL": url, "HEPHAESTUS_GATEWAY_CA": str(file)})
    line = checked.line("gateway", "certificate")
    assert (line["level"], checked.code) == ("ok", 0)
    assert "Check Authority" in line["found"]
    assert "days" in line["found"]


@pytest.mark.parametrize("host", ["127.0.0.1", "elsewhere.example"])
async def test_a_certificate_that_is_not_trusted(
    base: dict[str, str | None], authority: trustme.CA, tmp_path: Path, host: str
) -> None:
    """An unknown authority, or another host's certificate, is exit 69 with its reason."""
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    settings = base if host == "127.0.0.1" else base | {"HEPHAESTUS_GATEWAY_CA": str(file)}
    with gateway(tls=served_by(authority, host)) as url:
        checked = await check(settings | {"HEPHAESTUS_GATEWAY_URL": url})
    assert checked.code == 69
    assert checked.failed() == [("gateway", "certificate")]


async def test_authorities_that_are_none(base: dict[str, str | None], tmp_path: Path) -> None:
    """A file without a certificate is a wrong setting, as it is to the driver."""
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    url = "https://127.0.0.1:9"
    checked = await check(base | {"HEPHAESTUS_GATEWAY_URL": url, "HEPHAESTUS_GATEWAY_CA": str(file)})
    assert checked.code == 78
    assert checked.failed() == [("gateway", "authorities")]


async def test_an_open_network(base: dict[str, str | None]) -> None:
    """Each probe that opens is told, and the exit is the driver's own for it."""
    with open_port() as opened:
        checked = await check(base | {"DRIVER_ISOLATION_TARGET": f"127.0.0.1:{opened}"})
    assert checked.code == 77
    assert checked.failed() == [("isolation", f"probe of 127.0.0.1:{opened}")] * 3


async def test_a_gate_that_is_off(base: dict[str, str | None]) -> None:
    """On a machine that is no Pod it is a warning."""
    checked = await check(base | {"DRIVER_ISOLATION": "off"})
    assert (checked.line("isolation", "gate")["level"], checked.code) == ("warn", 0)


async def test_what_the_token_says(base: dict[str, str | None]) -> None:
    """Who it is for and how long it holds, and no other of its claims."""
    token = jwt(sub="sandbox-7", iss="gateway", secret="hidden", exp=int(time.time()) + 90_000)
    checked = await check(base | {"HEPHAESTUS_SANDBOX_TOKEN": token}, "--json", "--quick")
    assert checked.line("token", "sub")["found"] == "sandbox-7"
    assert checked.line("token", "exp")["level"] == "ok"
    assert "hidden" not in checked.text


@pytest.mark.parametrize(("left", "level", "code"), [(-5, "fail", 78), (300, "warn", 0)])
async def test_a_token_whose_time_is_up(base: dict[str, str | None], left: int, level: str, code: int) -> None:
    """An expired token fails, one that expires soon is a warning."""
    token = jwt(sub="sandbox-7", exp=int(time.time()) + left)
    checked = await check(base | {"HEPHAESTUS_SANDBOX_TOKEN": token}, "--json", "--quick")
    assert (checked.line("token", "exp")["level"], checked.code) == (level, code)


@pytest.mark.parametrize(
    "token", ["a.b.c-and-more", "....----", jwt(exp="soon", sub={"a": "\x1b[31m"}), "e30.W10.xxxx"]
)
async def test_a_token_that_says_nothing(base: dict[str, str | None], token: str) -> None:
    """Whatever stands where claims would stand does no harm."""
    checked = await check(base | {"HEPHAESTUS_SANDBOX_TOKEN": token}, "--json", "--quick")
    assert (checked.failed(), checked.code) == ([], 0)
    assert "\x1b" not in checked.text


async def test_a_workspace_that_is_none(base: dict[str, str | None], tmp_path: Path) -> None:
    """A file in its place fails as the machine's fault."""
    (tmp_path / "file").touch()
    checked = await check(base | {"DRIVER_WORKSPACE": str(tmp_path / "file")}, "--json", "--quick")
    assert (checked.failed(), checked.code) == ([("places", "workspace")], 71)


async def test_a_read_only_workspace(base: dict[str, str | None], disk: Disk) -> None:
    """A file system that takes no writes fails."""
    checked = await check(base | {"DRIVER_WORKSPACE": str(disk("ro"))}, "--json", "--quick")
    assert checked.code == 71
    assert "read-only" in checked.line("places", "workspace")["found"]


@pytest.mark.parametrize(("options", "said"), [("size=16m", "programs may use"), ("size=4g,nr_inodes=100", "inodes")])
async def test_a_workspace_without_room(base: dict[str, str | None], disk: Disk, options: str, said: str) -> None:
    """Less room than programs may use, or few inodes, is a warning."""
    place = str(disk(options))
    checked = await check(base | {"DRIVER_WORKSPACE": place, "DRIVER_PROGRAM_DISK": "1GiB"}, "--json", "--quick")
    line = checked.line("places", "workspace")
    assert (line["level"], checked.code) == ("warn", 0)
    assert said in line["found"]


async def test_commands_that_are_missing(base: dict[str, str | None], tmp_path: Path) -> None:
    """git fails as the machine's fault, rg is a warning, a program that is not there is a wrong setting."""
    (tmp_path / "env").symlink_to("/usr/bin/env")
    nothing = {"PATH": str(tmp_path)}
    checked = await check(base | nothing, "--json", "--quick")
    assert (checked.failed(), checked.code) == ([("commands", "git")], 71)
    assert checked.line("commands", "rg")["level"] == "warn"
    checked = await check(base | nothing | {"DRIVER_PROGRAM_REVIEW": "codex exec"}, "--json", "--quick")
    assert checked.code == 78


async def test_versions(base: dict[str, str | None], tmp_path: Path) -> None:
    """Each command tells its version, without the token, and one that fails at that is no failure."""
    agent = tmp_path / "agent"
    agent.write_text(f'#!/bin/sh\nenv | grep -q {TOKEN} && exit 1\n[ "$1" = --version ] && echo agent 4.2\n')
    agent.chmod(0o755)
    checked = await check(base | {"DRIVER_PROGRAM_REVIEW": f"{agent} review", "DRIVER_PROGRAM_DIGEST": "false"})
    assert checked.line("commands", "git")["found"].split(": ")[1].startswith("git version")
    assert checked.line("commands", "DRIVER_PROGRAM_REVIEW")["found"] == f"{agent}: agent 4.2"
    assert "does not tell" in checked.line("commands", "DRIVER_PROGRAM_DIGEST")["found"]
    assert checked.code == 0


LIMITS = {
    "none": ({}, "warn", "ok"),
    "wide": ({"memory.max": f"{2 * GIB}", "pids.max": "1024"}, "ok", "ok"),
    "narrow": ({"memory.max": f"{GIB}", "pids.max": "100"}, "ok", "warn"),
}


@pytest.mark.parametrize("case", LIMITS)
async def test_limits_of_the_container(base: dict[str, str | None], mounts: None, tmp_path: Path, case: str) -> None:
    """No limit of memory, or fewer processes than programs may have, is a warning."""
    files, memory, processes = LIMITS[case]
    checked = await check(base, "--json", "--quick", prefix=with_limits(files))
    assert checked.line("limits", "memory")["level"] == memory
    assert checked.line("limits", "processes")["level"] == processes


async def test_more_memory_for_programs_than_there_is(base: dict[str, str | None], mounts: None) -> None:
    """Programs that may take what the driver needs are a warning that names both."""
    limited = with_limits({"memory.max": f"{GIB}"})
    checked = await check(base | {"DRIVER_PROGRAM_MEMORY": "1GiB"}, "--json", "--quick", prefix=limited)
    line = checked.line("limits", "memory")
    assert (line["level"], line["found"]) == ("warn", "the container has 1,024 MiB, programs may have 1,024 MiB")


def with_limits(files: dict[str, str]) -> list[str]:
    """A command that has these files, and no other, as its control group."""
    if not Path("/sys/fs/cgroup").is_dir():
        pytest.skip("no place for control groups here")
    lines = ["set -e", "mount -t tmpfs none /sys/fs/cgroup"]
    lines += [f"echo {text} > /sys/fs/cgroup/{name}" for name, text in files.items()]
    return ["unshare", "--mount", "sh", "-c", "\n".join([*lines, 'exec "$@"']), "sh"]


@pytest.mark.parametrize("given", [False, True])
async def test_beside_a_running_driver(tmp_path: Path, given: bool) -> None:
    """In a sandbox it sees that the driver keeps the token to itself, and warns where an exec brought it along."""
    needs_root()
    async with running_stub(scenario()) as stub:
        program = shell("echo ready; sleep 600 & wait")
        container = contained(tmp_path, uid=65534, gid=65534)
        settings = environment({"DRIVER_PROGRAM_REVIEW": program})
        async with driving(stub, tmp_path, command=container, **settings) as driver:
            await driver.wait_event("program.output", text="ready")
            inside = ["nsenter", "-t", str(pid_1(driver.process.pid)), "-m", "-p", "-r", "-S", "65534", "-G", "65534"]
            held = {"HEPHAESTUS_SANDBOX_TOKEN": stub.token if given else None, "HEPHAESTUS_GATEWAY_URL": stub.url}
            checked = await check(held | {"DRIVER_WORKSPACE": "/workspace"}, "--json", "--quick", prefix=inside)
            assert driver.named("run.ended") == []
    assert checked.line("token", "process 1")["level"] == "ok"
    levels = {line["name"]: line["level"] for line in checked.findings if line["area"] == "token"}
    if given:
        assert levels["this process"] == "warn"
    else:
        assert levels == {"the token": "ok", "process 1": "ok"}
    # The target that this driver has was not handed to the check.
    assert checked.failed() == [("settings", "DRIVER_ISOLATION_TARGET")]


async def test_quick_speaks_to_nobody(base: dict[str, str | None]) -> None:
    """With --quick no network is used and no command started."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.settimeout(0)
        port = listening.getsockname()[1]
        settings = {
            "HEPHAESTUS_GATEWAY_URL": f"http://127.0.0.1:{port}",
            "DRIVER_ISOLATION_TARGET": f"127.0.0.1:{port}",
        }
        checked = await check(base | settings, "--json", "--quick")
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert not {"gateway", "clock", "isolation"} & {line["area"] for line in checked.findings}
    assert "version" not in checked.line("commands", "git")["found"]


async def test_text_for_people(base: dict[str, str | None]) -> None:
    """Columns are aligned, what to do stands below, and there is no colour where nobody sees it."""
    settings = base | {"HEPHAESTUS_SANDBOX_TOKEN": None}
    told = await check(settings, "--json", "--quick")
    text = (await check(settings, "--quick")).text
    assert "\x1b" not in text
    lines = text.splitlines()
    column = lines[0].index("programs of the same user")
    for line in told.findings:
        (shown,) = [shown for shown in lines if shown[column:] == line["found"] and line["name"] in shown]
        assert shown.startswith(line["level"])
        if "advice" in line:
            assert lines[lines.index(shown) + 1] == " " * column + f"-> {line['advice']}"
    assert lines[-1].endswith("exit 78")


async def test_wrong_arguments() -> None:
    """What it does not take is a usage error."""
    assert (await check({}, "--fast")).code == 64


async def test_a_stop_ends_it(base: dict[str, str | None]) -> None:
    """Started by the entrypoint, which holds signals for the driver, it still ends by SIGTERM."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        variables = {name: value for name, value in base.items() if value is not None}
        variables |= {"PATH": os.environ["PATH"], "DRIVER_PYTHON": sys.executable, "HEPHAESTUS_SANDBOX_TOKEN": TOKEN}
        variables["HEPHAESTUS_GATEWAY_URL"] = f"http://127.0.0.1:{listening.getsockname()[1]}"
        process = await anyio.open_process([str(ROOT / "entrypoint.sh"), "check"], env=variables)
        with anyio.fail_after(30):
            asking, _ = await anyio.to_thread.run_sync(listening.accept)
            with asking:  # it waits for the answer
                process.send_signal(signal.SIGTERM)
                assert await process.wait() == -signal.SIGTERM
