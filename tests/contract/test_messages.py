"""The golden messages: driver and stub share one reading of the wire, and this file is its independent statement."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from driver.gateway import wire
from kinds.compose import ComposeContext, request_of
from kinds.conversation_context import DigestContext, TurnContext, stated

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
            "model": wire.ModelChoice(id="gpt-5.1-codex", wire="responses", context_tokens=400_000),
            "work_seconds": 1800,
            "task": "task.json",
        }
    ),
    "context_review_compose": wire.Context.model_validate(
        {
            "kind": "REVIEW_COMPOSE",
            "model": wire.ModelChoice(id="gpt-5.1-codex", wire="chat"),
            "work_seconds": 600,
            "observations": [
                {
                    "id": "dac610e8bb817390",
                    "practiceSlug": "errors-are-specific",
                    "outcome": "NOT_MET",
                    "severity": "MAJOR",
                    "summary": "An added handler catches every error.",
                    "citations": [
                        {
                            "path": "repos/reviewed/stock/shelf.py",
                            "startLine": 14,
                            "endLine": 14,
                            "quote": "        except:",
                        }
                    ],
                },
                {
                    "id": "659f58f61d8f024d",
                    "practiceSlug": "tests-come-along",
                    "outcome": "MET",
                    "summary": "A test came.",
                    "citations": [],
                },
            ],
            "digest": DIGEST,
            "channels": {
                "inline": {"maxUnits": 20, "maxCharacters": 2000},
                "summary": {"maxUnits": 20, "maxCharacters": 4000},
            },
            "history": [],
        }
    ),
    "context_digest": wire.Context.model_validate(
        {
            "kind": "DIGEST",
            "model": wire.ModelChoice(id="gpt-5.1-codex", wire="responses"),
            "work_seconds": 300,
            "conversation": "17",
            "facts": [
                {"id": "f1", "kind": "FEEDBACK", "text": "Name the error.", "at": "2026-11-23T09:30:00Z"},
                {"id": "p1", "kind": "PROFILE_CHANGE", "text": "Tests are steady.", "at": "2026-11-24T09:30:00+01:00"},
            ],
            "window": {"from": "2026-11-23T00:00:00Z", "to": "2026-11-30T00:00:00Z"},
            "answerChars": 1200,
        }
    ),
    "context_turn": wire.Context.model_validate(
        {
            "kind": "TURN",
            "model": wire.ModelChoice(id="gpt-5.1-codex", wire="messages", context_tokens=200_000),
            "work_seconds": 120,
            "conversation": "17",
            "facts": [],
            "window": {"from": "2026-11-23T00:00:00Z", "to": "2026-11-30T00:00:00Z"},
            "answerChars": 4000,
            "question": "What should I look at next?",
            "history": [
                {"role": "DEVELOPER", "text": "How did my week go?"},
                {"role": "ASSISTANT", "text": "Your tests came along."},
            ],
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


def test_the_contexts_of_conversations_are_what_their_kinds_take() -> None:
    """Each member means what the kind reads: moments with their offsets, characters, who said what."""
    digest = stated(DigestContext, GOLDEN["context_digest"].model_extra or {})
    assert digest.facts[1].at == datetime(2026, 11, 24, 8, 30, tzinfo=UTC)
    assert (digest.window.since, digest.window.until) == (
        datetime(2026, 11, 23, tzinfo=UTC),
        datetime(2026, 11, 30, tzinfo=UTC),
    )
    turn = stated(TurnContext, GOLDEN["context_turn"].model_extra or {})
    assert isinstance(turn, TurnContext)
    assert (turn.question, turn.answer_chars) == ("What should I look at next?", 4000)
    assert [said.role for said in turn.history] == ["DEVELOPER", "ASSISTANT"]


def test_the_context_of_a_composition_is_what_its_kind_takes() -> None:
    """Each member reaches the composing program as the gateway told it."""
    told = GOLDEN["context_review_compose"].model_extra or {}
    request = json.loads(request_of(ComposeContext.model_validate(told)))
    assert request == {"schemaVersion": 1, **told}


def test_context_keeps_what_its_kind_needs() -> None:
    """Fields of one kind survive in the common context."""
    context = wire.Context.model_validate_json((MESSAGES / "context_review.json").read_bytes())
    assert context.model_extra == {"task": "task.json"}
