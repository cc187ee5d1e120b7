"""The environment of a program is an exact list."""

from pathlib import Path

from driver.gateway.wire import Run
from driver.layout import Layout
from driver.process.environment import DoorAddress, ProgramFacts, program_environment


def facts(**host: str) -> ProgramFacts:
    return ProgramFacts(
        run=Run(id="run-1", kind="REVIEW", subject="s", epoch=3, attempt=2),
        model="model-1",
        layout=Layout(Path("/workspace")),
        work_seconds=lambda: 599.9,
        host=host,
    )


WITHOUT_DOOR = {
    "PATH": "/opt/bin:/bin",
    "LANG": "de_DE.UTF-8",
    "TZ": "Europe/Berlin",
    "HOME": "/workspace/work/home",
    "TMPDIR": "/workspace/work/tmp",
    "DRIVER_RUN_ID": "run-1",
    "DRIVER_RUN_KIND": "REVIEW",
    "DRIVER_RUN_ATTEMPT": "2",
    "DRIVER_WORKSPACE": "/workspace",
    "DRIVER_WORK_SECONDS": "599",
    "DRIVER_MODEL": "model-1",
}

HOST = {
    "PATH": "/opt/bin:/bin",
    "LANG": "de_DE.UTF-8",
    "TZ": "Europe/Berlin",
    "HOME": "/root",
    "HEPHAESTUS_SANDBOX_TOKEN": "token-token-token",
    "HEPHAESTUS_GATEWAY_URL": "http://10.0.0.1",
    "LD_PRELOAD": "/evil.so",
    "OPENAI_API_KEY": "somebody's",
    "https_proxy": "http://proxy",
}


def test_exact_without_door() -> None:
    """Of the driver's own environment only PATH, LANG and TZ come through."""
    assert program_environment(facts(**HOST)) == WITHOUT_DOOR


def test_exact_with_door() -> None:
    """With an open door both vendors' clients are pointed to it, with the run's key."""
    door = DoorAddress("http://127.0.0.1:4000", "door-key")
    assert program_environment(facts(**HOST), door) == {
        **WITHOUT_DOOR,
        "DRIVER_DOOR_URL": "http://127.0.0.1:4000",
        "DRIVER_DOOR_KEY": "door-key",
        "OPENAI_BASE_URL": "http://127.0.0.1:4000/v1",
        "OPENAI_API_KEY": "door-key",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:4000",
        "ANTHROPIC_API_KEY": "door-key",
    }


def test_defaults() -> None:
    """An empty environment of the driver still gives a program a path, a UTF-8 locale and a time zone."""
    made = program_environment(facts())
    assert made["PATH"] == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert (made["LANG"], made["TZ"]) == ("C.UTF-8", "UTC")


def test_work_seconds_are_never_negative() -> None:
    """Past the deadline a program is told 0 seconds."""
    late = ProgramFacts(facts().run, "m", Layout(Path("/w")), lambda: -3.5, {})
    assert program_environment(late)["DRIVER_WORK_SECONDS"] == "0"


def test_key_is_not_shown() -> None:
    """The repr of a door address, which may end in a traceback, has no key."""
    assert "door-key" not in repr(DoorAddress("http://127.0.0.1:1", "door-key"))
