"""The sandboxes of the stub and their tokens.

REQUESTED until the first call, then READY, and DELETING once it is taken back. A subject has at most one live
sandbox. Its token names the sandbox, its workspace and its subject, is signed, and is accepted only while
the sandbox is live and before its shutdown time (docs/protocol.md, "Identity").
"""

import base64
import binascii
import hmac
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from driver.stub.errors import TokenNotAccepted
from driver.stub.runs import Record

_PREFIX = "sandbox-v1"


class SandboxState(StrEnum):
    REQUESTED = "REQUESTED"
    READY = "READY"
    DELETING = "DELETING"


@dataclass
class Sandbox:
    """One sandbox. `last_used` moves only with a call that leases a run."""

    id: str
    workspace: str
    subject: str
    shutdown: datetime
    state: SandboxState = SandboxState.REQUESTED
    last_used: datetime | None = None

    @property
    def live(self) -> bool:
        return self.state is not SandboxState.DELETING

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "workspace": self.workspace,
            "subject": self.subject,
            "state": self.state,
            "shutdown": self.shutdown.isoformat(),
            "lastUsed": self.last_used and self.last_used.isoformat(),
        }


class Sandboxes:
    """All sandboxes. `key` signs the tokens."""

    def __init__(self, key: bytes, now: Callable[[], datetime], record: Record) -> None:
        self._key = key
        self._now = now
        self._record = record
        self._sandboxes: dict[str, Sandbox] = {}

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(self._sandboxes.values())

    def restore(self, sandboxes: Iterable[Sandbox]) -> None:
        """Take up the sandboxes of a stub before this one, as they were."""
        self._sandboxes = {sandbox.id: sandbox for sandbox in sandboxes}

    def ensure(self, workspace: str, subject: str, life: timedelta) -> Sandbox:
        """The live sandbox of the subject; a new one where there is none."""
        live = next((s for s in self if s.subject == subject and s.live), None)
        if live is not None:
            return live
        sandbox = Sandbox(f"sandbox-{len(self._sandboxes) + 1}", workspace, subject, self._now() + life)
        self._sandboxes[sandbox.id] = sandbox
        self._record("sandbox.requested", sandbox=sandbox.id, subject=subject)
        return sandbox

    def token(self, sandbox: Sandbox) -> str:
        """The sandbox's token. It is not kept and not in any entry of the journal."""
        claims = {
            "sandbox": sandbox.id,
            "workspace": sandbox.workspace,
            "subject": sandbox.subject,
            "expires": sandbox.shutdown.timestamp(),
        }
        body = _encode(json.dumps(claims, separators=(",", ":")).encode())
        return f"{_PREFIX}.{body}.{self._sign(body)}"

    def admit(self, token: str) -> Sandbox:
        """The sandbox that calls; its first call makes it READY. Raises TokenNotAccepted."""
        sandbox = self._sandboxes.get(self._read(token).get("sandbox", ""))
        if sandbox is None or not sandbox.live:
            raise TokenNotAccepted("the sandbox was taken back")
        if sandbox.shutdown <= self._now():
            raise TokenNotAccepted("the sandbox is past its shutdown time")
        if sandbox.state is SandboxState.REQUESTED:
            sandbox.state = SandboxState.READY
            self._record("sandbox.ready", sandbox=sandbox.id)
        return sandbox

    def use(self, sandbox: Sandbox) -> None:
        """The sandbox leased a run."""
        sandbox.last_used = self._now()

    def take_back(self, sandbox: Sandbox) -> None:
        """The token of the sandbox stops at once."""
        if sandbox.live:
            sandbox.state = SandboxState.DELETING
            self._record("sandbox.taken_back", sandbox=sandbox.id)

    def _read(self, token: str) -> dict[str, str]:
        prefix, _, rest = token.partition(".")
        body, _, signature = rest.partition(".")
        if prefix != _PREFIX or not hmac.compare_digest(signature.encode(), self._sign(body).encode()):
            raise TokenNotAccepted("the token is not one of this gateway")
        try:
            claims: dict[str, str] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        except (binascii.Error, ValueError) as error:
            raise TokenNotAccepted("the token cannot be read") from error
        return claims

    def _sign(self, body: str) -> str:
        return _encode(hmac.digest(self._key, body.encode(), "sha256"))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
