"""The golden messages: driver and stub share one reading of the wire, and this file is its independent statement."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from driver.gateway import wire

MESSAGES = Path(__file__).parent / "messages"
DIGEST = "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"

GOLDEN: dict[str, wire.Message] = {
    "next_request": wire.NextRequest(kinds=["REVIEW", "REVIEW_COMPOSE"], driver="agent-sandbox-driver/0.1.0"),
    "claim": wire.Claim(
        run=wire.Run(id="run-7f3a", kind="REVIEW", subject="review:42", epoch=3, attempt=1),
        now=datetime(2026, 11, 29, 10, tzinfo=UTC),
        leased_until=datetime(2026, 11, 29, 10, 2, tzinfo=UTC),
        deadline=datetime(2026, 11, 29, 10, 45, 0, 500_000, tzinfo=UTC),
    ),
    "lease": wire.Lease(
        now=datetime(2026, 11, 29, 10, 0, 40, tzinfo=UTC),
        leased_until=datetime(2026, 11, 29, 10, 2, 40, tzinfo=UTC),
        deadline=None,
    ),
    "context_review": wire.Context.model_validate(
        {
            "kind": "REVIEW",
            "model": wire.ModelChoice(id="gpt-5.1-codex", wire="responses"),
            "work_seconds": 1800,
            "task": "task.json",
        }
    ),
    "runtime": wire.Runtime(
        contract=1,
        workspace_bytes=512 * 1024 * 1024,
        workspace_digest=DIGEST,
        result_bytes=50 * 1024 * 1024,
        upload_seconds=600,
    ),
    "admission": wire.Admission(
        digest=DIGEST,
        admitted=[wire.Admitted(index=0, id="obs-1")],
        refused=[wire.Refusal(index=1, reason="citation outside the change")],
    ),
    "end_failed": wire.End(outcome="FAILED", exit=124, reason="stopped at the work deadline"),
    "end_answered": wire.End(
        outcome="COMPLETED", exit=0, answer={"text": "Three fixes landed.", "factIds": ["f1", "f3"]}
    ),
    "end_result": wire.EndResult(result="REFUSED", reason="the facts are gone"),
    "problem": wire.Problem(title="Conflict", status=409, detail="epoch 2 is over", code="stale_claim"),
}


def test_every_golden_message_is_checked() -> None:
    """No file lies beside the table unread."""
    assert {file.stem for file in MESSAGES.iterdir()} == GOLDEN.keys()


@pytest.mark.parametrize("name", GOLDEN)
def test_reads(name: str) -> None:
    """Each golden text is read as the message that stands here."""
    message = GOLDEN[name]
    assert type(message).model_validate_json((MESSAGES / f"{name}.json").read_bytes()) == message


@pytest.mark.parametrize("name", GOLDEN)
def test_writes(name: str) -> None:
    """Each message is written as its golden text: names, nulls and times to the letter."""
    golden = json.loads((MESSAGES / f"{name}.json").read_text("utf-8"))
    written = GOLDEN[name].model_dump_json()
    # RFC 3339 leaves the number of fractional digits open.
    assert json.loads(written.replace("00.500000Z", "00.500Z")) == golden


def test_unknown_fields_are_ignored() -> None:
    """A gateway that knows more than this driver is understood."""
    text = (MESSAGES / "lease.json").read_text("utf-8").replace("{", '{"holder": "x", ', 1)
    assert wire.Lease.model_validate_json(text) == GOLDEN["lease"]


def test_context_keeps_what_its_kind_needs() -> None:
    """Fields of one kind survive in the common context."""
    context = wire.Context.model_validate_json((MESSAGES / "context_review.json").read_bytes())
    assert context.model_extra == {"task": "task.json"}
