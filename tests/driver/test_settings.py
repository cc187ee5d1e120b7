"""Settings: read once, every problem at once, and never a token in what is said."""

import os
from pathlib import Path

import pytest

from driver import settings
from driver.errors import SettingsError
from driver.values import MIB, Target

GOOD = {
    "HEPHAESTUS_GATEWAY_URL": "http://10.0.0.7:8080/",
    "HEPHAESTUS_SANDBOX_TOKEN": "a-token-of-enough-length",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
}


def problems(**changes: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        settings.read(GOOD | changes)
    return caught.value.problems


def test_defaults() -> None:
    """With only what is required, every other setting has its documented default."""
    read = settings.read(GOOD)
    assert read.gateway_url == "http://10.0.0.7:8080"
    assert read.token == "a-token-of-enough-length"
    assert read.workspace == Path("/workspace")
    assert read.isolation == settings.IsolationSettings(Target("10.96.0.1", 443), 0.3, 10.0)
    assert (read.poll_min, read.poll_max, read.stop_grace) == (1.0, 5.0, 25.0)
    assert read.model == settings.ModelSettings(32, 128, 30.0, 512 * MIB)
    assert (read.program.session_heap, read.program.session_size) == (256 * MIB, 3 * MIB)
    assert (read.program.disk, read.program.processes) == (2048 * MIB, 512)
    assert read.program.review[-2:] == ("-m", "kinds.programs.measure")
    assert (read.log_format, read.log_level) == ("json", "info")


def test_all_problems_at_once() -> None:
    """Several wrong settings are all reported, each by name, with what is allowed."""
    found = problems(
        HEPHAESTUS_GATEWAY_URL="ftp://x",
        HEPHAESTUS_SANDBOX_TOKEN="",
        DRIVER_POLL_MIN="soon",
        DRIVER_PROGRAM_DISK="5 bananas",
        DRIVER_MODEL_TRANSPORTS="0",
        DRIVER_LOG="xml",
        DRIVER_WORKSPACE="relative",
    )
    assert found == [
        "HEPHAESTUS_GATEWAY_URL: must be http://ADDRESS[:PORT] or https://ADDRESS[:PORT]",
        "HEPHAESTUS_SANDBOX_TOKEN: exactly one of it and HEPHAESTUS_SANDBOX_TOKEN_FILE is required",
        "DRIVER_WORKSPACE: must be an absolute path below /",
        "DRIVER_POLL_MIN: must be seconds from 0.01 to 3600",
        "DRIVER_MODEL_TRANSPORTS: must be a whole number from 1 to 10,000",
        "DRIVER_PROGRAM_DISK: must be a size of at least 1,048,576 bytes, in bytes, KiB, MiB or GiB",
        "DRIVER_LOG: must be one of json, console",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEPHAESTUS_GATEWAY_URL", "http://user:secret@10.0.0.1"),
        ("HEPHAESTUS_GATEWAY_URL", "http://10.0.0.1:0"),
        ("HEPHAESTUS_GATEWAY_URL", "http://10.0.0.1:99999"),
        ("HEPHAESTUS_GATEWAY_URL", "http://10.0.0.1/?x=1"),
        ("HEPHAESTUS_GATEWAY_URL", "http://10.0.0.1/?"),
        ("HEPHAESTUS_GATEWAY_URL", "http://10.0.0.1#"),
        ("HEPHAESTUS_GATEWAY_URL", "http://@10.0.0.1"),
        ("HEPHAESTUS_GATEWAY_URL", "http://10.0.0.1:8080\n"),
        ("HEPHAESTUS_GATEWAY_URL", "http://10.0.0.1 /x"),
        ("HEPHAESTUS_GATEWAY_URL", "http://10.0.0.1:８０"),
        ("HEPHAESTUS_GATEWAY_URL", "http://[fd00::1"),
        ("HEPHAESTUS_GATEWAY_URL", "http://[fd00::g]"),
        ("HEPHAESTUS_GATEWAY_URL", "http://999.1.1.1"),
        ("HEPHAESTUS_GATEWAY_URL", "http://10.0.0"),
        ("HEPHAESTUS_GATEWAY_URL", "http://gate%20way"),
        ("HEPHAESTUS_GATEWAY_URL", "http://-gateway"),
        ("HEPHAESTUS_GATEWAY_URL", "//10.0.0.1"),
        ("HEPHAESTUS_GATEWAY_URL", "10.0.0.1:80"),
        ("HEPHAESTUS_GATEWAY_CA", "/does/not/exist"),
        ("HEPHAESTUS_GATEWAY_CA", "/etc"),
        ("HEPHAESTUS_SANDBOX_TOKEN", "short"),
        ("HEPHAESTUS_SANDBOX_TOKEN", "two words are no token"),
        ("KUBERNETES_SERVICE_HOST", "kubernetes.default"),
        ("KUBERNETES_SERVICE_HOST", "127.0.0.1"),
        ("KUBERNETES_SERVICE_HOST", "::1"),
        ("KUBERNETES_SERVICE_PORT", "https"),
        ("DRIVER_ISOLATION_TARGET", "10.0.0.1"),
        ("DRIVER_ISOLATION_TARGET", "api:443"),
        ("DRIVER_ISOLATION_TARGET", "0.0.0.0:443"),
        ("DRIVER_ISOLATION_TARGET", "[::]:443"),
        ("DRIVER_ISOLATION_TARGET", "224.0.0.1:443"),
        ("DRIVER_ISOLATION_TARGET", "127.0.0.1:443"),
        ("DRIVER_ISOLATION_TARGET", "[::ffff:127.0.0.1]:443"),
        ("DRIVER_ISOLATION_TARGET", "[::ffff:0.0.0.0]:443"),
        ("DRIVER_ISOLATION_TARGET", "10.0.0.1:٤٤٣"),
        ("DRIVER_ISOLATION_TARGET", "10.0.0.1:²"),
        ("DRIVER_ISOLATION_TARGET", "10.0.0.1:" + "9" * 5000),
        ("DRIVER_ISOLATION", "sometimes"),
        ("DRIVER_STOP_GRACE", "nan"),
        ("DRIVER_STOP_GRACE", "٢٥"),
        ("DRIVER_STOP_GRACE", "1e999"),
        ("DRIVER_STOP_GRACE", "-5"),
        ("DRIVER_STOP_GRACE", "25ss"),
        ("DRIVER_MODEL_QUEUE", "-1"),
        ("DRIVER_MODEL_QUEUE", "1" * 5000),
        ("DRIVER_MODEL_QUEUE", "٣٢"),
        ("DRIVER_PROGRAM_DISK", "9" * 30 + "GiB"),
        ("DRIVER_PROGRAM_DISK", "5KiBMiB"),
        ("DRIVER_PROGRAM_DISK", "٥GiB"),
        ("DRIVER_PROGRAM_MEMORY", "0"),
        ("DRIVER_PROGRAM_REVIEW", "'unclosed"),
        ("DRIVER_WORKSPACE", "/"),
        ("DRIVER_WORKSPACE", "//"),
        ("DRIVER_WORKSPACE", "//workspace"),
        ("DRIVER_WORKSPACE", "/./"),
        ("DRIVER_WORKSPACE", "/a/../etc"),
    ],
)
def test_wrong_value(name: str, value: str) -> None:
    """Each wrong value is one problem that names its setting."""
    found = problems(**{name: value})
    assert [line.split(":")[0] for line in found] == [name]


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://10.0.0.7", "http://10.0.0.7"),
        ("http://10.0.0.7///", "http://10.0.0.7"),
        ("HTTPS://10.0.0.7:8443/", "https://10.0.0.7:8443"),
        ("http://[fd00::1]:8080", "http://[fd00::1]:8080"),
        ("http://gateway/behind/a/path/", "http://gateway/behind/a/path"),
    ],
)
def test_gateway_url(given: str, url: str) -> None:
    """The address is taken without slashes at its end, and with its scheme as the code looks for it."""
    assert settings.read(GOOD | {"HEPHAESTUS_GATEWAY_URL": given}).gateway_url == url


def test_empty_is_not_set() -> None:
    """A setting that is there and empty has its default."""
    empty = dict.fromkeys(["DRIVER_STOP_GRACE", "DRIVER_LOG", "DRIVER_PROGRAM_MEMORY", "HEPHAESTUS_GATEWAY_CA"], "")
    assert settings.read(GOOD | empty) == settings.read(GOOD)


@pytest.mark.parametrize("file", ["/dev/fd/99999999999999999999", "/dev/fd/999", "/dev/fd/٣", "/", "/does/not/exist"])
def test_token_file_that_cannot_be_read(file: str) -> None:
    """It is a wrong setting like any other."""
    environ = {k: v for k, v in GOOD.items() if k != "HEPHAESTUS_SANDBOX_TOKEN"}
    with pytest.raises(SettingsError, match="HEPHAESTUS_SANDBOX_TOKEN_FILE: cannot be read"):
        settings.read(environ | {"HEPHAESTUS_SANDBOX_TOKEN_FILE": file})


def test_token_is_never_said() -> None:
    """Neither a problem nor the representation of the settings holds the token."""
    secret = "wrong token with spaces 9417"
    assert not any("9417" in line for line in problems(HEPHAESTUS_SANDBOX_TOKEN=secret))
    assert "a-token-of-enough-length" not in repr(settings.read(GOOD))


def test_isolation_off_is_refused_in_a_pod() -> None:
    """The gate cannot be turned off where a Kubernetes API is announced."""
    assert problems(DRIVER_ISOLATION="off") == [
        "DRIVER_ISOLATION: `off` is refused in a Pod (KUBERNETES_SERVICE_HOST is set)"
    ]


def test_no_isolation_target_fails_closed() -> None:
    """Without a target and without `off` nothing starts."""
    environ = {k: v for k, v in GOOD.items() if not k.startswith("KUBERNETES")}
    with pytest.raises(SettingsError) as caught:
        settings.read(environ)
    assert [line.split(":")[0] for line in caught.value.problems] == ["DRIVER_ISOLATION_TARGET"]
    assert settings.read(environ | {"DRIVER_ISOLATION": "off"}).isolation.target is None


@pytest.mark.parametrize(
    ("text", "target"),
    [("10.1.2.3:6443", Target("10.1.2.3", 6443)), ("[fd00::1]:443", Target("fd00::1", 443))],
)
def test_isolation_target(text: str, target: Target) -> None:
    """A target is an address of either family with a port, and prints as it was written."""
    read = settings.read(GOOD | {"DRIVER_ISOLATION_TARGET": text}).isolation.target
    assert read == target
    assert str(read) == text


def test_token_file(tmp_path: Path) -> None:
    """The token can come in a file; white space around it does not count."""
    file = tmp_path / "token"
    file.write_text("from-a-file-0123\n")
    environ = {k: v for k, v in GOOD.items() if k != "HEPHAESTUS_SANDBOX_TOKEN"}
    assert settings.read(environ | {"HEPHAESTUS_SANDBOX_TOKEN_FILE": str(file)}).token == "from-a-file-0123"


def test_handed_over_descriptor_is_closed() -> None:
    """A token that comes on a descriptor can be read once: afterwards the descriptor is closed."""
    read_end, write_end = os.pipe()
    os.write(write_end, b"from-a-pipe-0123\n")
    os.close(write_end)
    environ = {k: v for k, v in GOOD.items() if k != "HEPHAESTUS_SANDBOX_TOKEN"}
    environ["HEPHAESTUS_SANDBOX_TOKEN_FILE"] = f"/dev/fd/{read_end}"
    assert settings.read(environ).token == "from-a-pipe-0123"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read_end)


def test_poll_bounds_must_be_in_order() -> None:
    """A pause whose upper bound is below its lower one is refused."""
    assert problems(DRIVER_POLL_MIN="6") == ["DRIVER_POLL_MAX: must not be below DRIVER_POLL_MIN"]


def test_session_must_fit_the_heap() -> None:
    """A heap in which not one session has room is refused."""
    assert problems(DRIVER_SESSION_HEAP="2MiB") == ["DRIVER_SESSION_SIZE: must not be above DRIVER_SESSION_HEAP"]
