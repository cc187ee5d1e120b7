"""Sandboxes and their tokens."""

import base64
import json
from datetime import timedelta

import pytest

from driver.stub.errors import TokenNotAccepted
from driver.stub.sandboxes import Sandbox, Sandboxes, SandboxState
from tests.stub.support import FakeTime

HOUR = timedelta(hours=1)


def silent(event: str, **fields: object) -> None:
    """Nobody reads these moves."""


def made(time: FakeTime, key: bytes = b"k" * 32) -> tuple[Sandboxes, Sandbox]:
    sandboxes = Sandboxes(key, time, silent)
    return sandboxes, sandboxes.ensure("workspace:1", "review:1", HOUR)


def test_the_first_call_makes_a_sandbox_ready() -> None:
    """A sandbox is REQUESTED until it calls, and then READY."""
    sandboxes, sandbox = made(FakeTime())
    states = [sandbox.state]
    assert sandboxes.admit(sandboxes.token(sandbox)) is sandbox
    assert [*states, sandbox.state] == [SandboxState.REQUESTED, SandboxState.READY]


def test_a_token_ends_at_the_shutdown_time() -> None:
    """A token is accepted before its sandbox's shutdown time and not at it."""
    time = FakeTime()
    sandboxes, sandbox = made(time)
    token = sandboxes.token(sandbox)
    time.advance(3599)
    sandboxes.admit(token)
    time.advance(1)
    with pytest.raises(TokenNotAccepted):
        sandboxes.admit(token)


def test_a_token_ends_when_its_sandbox_is_taken_back() -> None:
    """A token stops at once, and the subject gets a new sandbox."""
    sandboxes, sandbox = made(FakeTime())
    token = sandboxes.token(sandbox)
    sandboxes.take_back(sandbox)
    with pytest.raises(TokenNotAccepted):
        sandboxes.admit(token)
    assert sandboxes.ensure("workspace:1", "review:1", HOUR) is not sandbox


def test_a_subject_has_one_live_sandbox() -> None:
    """Asking again gives the sandbox that is there."""
    sandboxes, sandbox = made(FakeTime())
    assert sandboxes.ensure("workspace:1", "review:1", HOUR) is sandbox


@pytest.mark.parametrize("token", ["", "x", "sandbox-v1.e30.bad", "sandbox-v1.é.é", "other.e30.e30", "a" * 5000])
def test_what_is_no_token_is_refused(token: str) -> None:
    """Nonsense is refused and not a fault."""
    sandboxes, _ = made(FakeTime())
    with pytest.raises(TokenNotAccepted):
        sandboxes.admit(token)


def test_a_token_of_another_gateway_is_refused() -> None:
    """The signature is checked: the same names under another key are nothing."""
    sandboxes, sandbox = made(FakeTime())
    other, _ = made(FakeTime(), b"o" * 32)
    with pytest.raises(TokenNotAccepted):
        other.admit(sandboxes.token(sandbox))


def test_a_token_names_sandbox_workspace_and_subject() -> None:
    """The token says whom it is for."""
    sandboxes, sandbox = made(FakeTime())
    body = sandboxes.token(sandbox).split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    assert (claims["sandbox"], claims["workspace"], claims["subject"]) == ("sandbox-1", "workspace:1", "review:1")
