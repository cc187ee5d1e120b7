"""A caller of the stub that decides nothing, and the small things that the tests of the stub share."""

import base64
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from driver.stub.provider import ProviderSettings
from driver.stub.scenario import parse_scenario
from driver.stub.server import Stub, gateway_clock, running_stub

P = "/internal/agent"
TREE = Path(__file__).parent / "tree"
EXAMPLE: dict[str, Any] = {"workspace": {}}
"""A scenario with the example repository in place of the small tree that is packed in no time."""


class FakeTime:
    """A gateway clock that stands still until it is told."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.moment

    def advance(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)


@dataclass
class Caller:
    """An HTTP client with the sandbox's token, and the claim it has made last."""

    stub: Stub
    http: httpx.AsyncClient
    run: str = "run-1"
    epoch: int = 1

    @property
    def claim_headers(self) -> dict[str, str]:
        return {"x-agent-run": self.run, "x-agent-epoch": str(self.epoch)}

    async def next(self, wait: int = 0, kinds: tuple[str, ...] = ("REVIEW",)) -> httpx.Response:
        headers = {"prefer": f"wait={wait}"} if wait else {}
        answer = await self.http.post(f"{P}/next", json={"kinds": kinds, "driver": "test/1"}, headers=headers)
        if answer.status_code == 200:
            self.run, self.epoch = answer.json()["run"]["id"], answer.json()["run"]["epoch"]
        return answer

    async def get(self, call: str, **headers: str) -> httpx.Response:
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.get(f"{P}/runs/{self.run}/{call}", headers=self.claim_headers | headers)

    async def post(self, call: str, message: Any = None) -> httpx.Response:
        return await self.http.post(f"{P}/runs/{self.run}/{call}", headers=self.claim_headers, json=message or {})

    async def result(self, body: bytes, *, digest: str | None = None, exit: int = 0) -> httpx.Response:
        headers = {"content-digest": digest or digest_of(body), "x-agent-exit": str(exit)}
        return await self.http.post(
            f"{P}/runs/{self.run}/runtime/result", headers=self.claim_headers | headers, content=body
        )

    async def model(self, path: str, message: Any, **headers: str) -> httpx.Response:
        return await self.http.post(f"{P}/model/v1/{path}", headers=self.claim_headers | headers, json=message)


@asynccontextmanager
async def calling(
    scenario: dict[str, Any] | None = None,
    *,
    now: Callable[[], datetime] = gateway_clock,
    results: Path | None = None,
    provider: ProviderSettings | None = None,
) -> AsyncIterator[Caller]:
    """A running stub and a caller that has its token."""
    async with (
        running_stub(
            parse_scenario({"workspace": {"directory": TREE}, **(scenario or {})}),
            results=results,
            provider=provider,
            reap_seconds=0.01,
            now=now,
        ) as stub,
        on_stub(stub) as caller,
    ):
        yield caller


@asynccontextmanager
async def on_stub(stub: Stub) -> AsyncIterator[Caller]:
    """A caller that has the token of a running stub."""
    headers = {"authorization": f"Bearer {stub.token}"}
    async with httpx.AsyncClient(base_url=stub.url, headers=headers, trust_env=False, timeout=10) as http:
        yield Caller(stub, http)


def fault(at: str, what: str, nth: int | str = 1, **facts: Any) -> dict[str, Any]:
    """A scenario with one fault."""
    return {"fault": [{"at": at, "what": what, "nth": nth, **facts}]}


def digest_of(body: bytes) -> str:
    """The Content-Digest of a body, made here and not with the code under test."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def code_of(answer: httpx.Response) -> str:
    """The code of a problem document."""
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == answer.status_code
    return str(answer.json()["code"])
