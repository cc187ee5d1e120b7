"""Program and runner judge an answer by one set of rules."""

import json
from typing import Any

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from kinds.conversation_context import Answer, DigestContext, stated
from kinds.programs.answering import Answering
from kinds.programs.captured import Captured, Fact
from kinds.programs.session_log import SessionLog
from kinds.programs.wires import ToolCall

LIMIT = 8
AT = "2026-01-05T09:30:00Z"
IDS = ["f1", "f2", "f3"]
CONTEXT = stated(
    DigestContext,
    {
        "conversation": "c",
        "facts": [{"id": id, "kind": "FEEDBACK", "text": "", "at": AT} for id in IDS],
        "window": {"from": AT, "to": AT},
        "answerChars": LIMIT,
    },
)
CAPTURED = Captured(
    conversation="c",
    facts=tuple(Fact(id, "FEEDBACK", "", AT) for id in IDS),
    since=AT,
    until=AT,
    answer_characters=LIMIT,
    question=None,
    history=(),
)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=4), lambda inner: st.lists(inner))
# With halves of surrogate pairs, as a model's JSON may have them.
TEXTS = st.text(st.characters(), max_size=LIMIT + 3) | st.text(st.sampled_from("a \n\x00\ud800\U0001f600"), max_size=11)
ID_LISTS = st.lists(st.sampled_from([*IDS, "f9", ""])) | st.sampled_from(['["f1"]', '["f1"', "f1"]) | JSON


@settings(deadline=None)
@given(text=TEXTS | JSON, ids=ID_LISTS, escaped=st.booleans())
def test_what_the_program_takes_the_runner_allows(text: Any, ids: Any, escaped: bool) -> None:
    """Whatever a model calls `answer` with: it is refused with a reason, or taken and allowed beside the token."""
    part = Answering(CAPTURED, SessionLog("c", ()))
    arguments = json.dumps({"text": text, "factIds": ids}, ensure_ascii=escaped)
    told = anyio.run(part.take, ToolCall("1", "answer", arguments))
    if part.answer is None:
        assert told is not None
        assert told.startswith("refused: ")
        return
    assert told == "The answer is taken."
    answer = Answer.model_validate_json(json.dumps(part.answer.as_json()))
    answer.require_allowed(CONTEXT)
    assert 0 < len(answer.text) <= LIMIT
    assert set(answer.fact_ids) <= set(IDS)
