"""Admission: which measured observations the gateway takes, and the digest of those it took.

Decided again here whatever the program checked: a tool in the sandbox may have written them. Only the fields
that are named here are judged and kept. The same observations get the same ids and the same digest, so a
repeat changes nothing.
"""

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from driver.gateway.wire import Admission, Admitted, Refusal
from driver.stub.errors import Rejected
from driver.stub.results import digest_field

_OUTCOMES: Final = ("MET", "NOT_APPLICABLE", "NOT_MET", "UNDETERMINED")
_SEVERITIES: Final = ("CRITICAL", "MAJOR", "MINOR")
_FIELDS: Final = ("practiceSlug", "outcome", "severity", "summary", "citations")
_CITATION_FIELDS: Final = ("path", "startLine", "endLine", "quote")
_ID_CHARACTERS: Final = 16
_MOST: Final = 10_000
_LAST_LINE: Final = 2**31 - 1


@dataclass(frozen=True)
class Admissions:
    """The answer to the program, and the admitted observations with their ids."""

    answer: Admission
    observations: list[dict[str, Any]]


def admit(body: bytes, practices: Collection[str] | None) -> Admissions:
    """Judge `{"observations": [...]}`, each on its own. `practices` are the slugs that may be measured.

    Rejected (400) when the body is something else.
    """
    admitted: list[Admitted] = []
    refused: list[Refusal] = []
    kept: list[dict[str, Any]] = []
    seen: set[str] = set()
    for index, given in enumerate(_listed(body)):
        reason = _problem(given, practices, seen)
        if reason:
            refused.append(Refusal(index=index, reason=reason))
            continue
        observation = _known_fields(given)
        seen.add(observation["practiceSlug"])
        identity = hashlib.sha256(canonical(observation)).hexdigest()[:_ID_CHARACTERS]
        admitted.append(Admitted(index=index, id=identity))
        kept.append({**observation, "id": identity})
    digest = digest_field(hashlib.sha256(canonical(kept)).digest())
    return Admissions(Admission(digest=digest, admitted=admitted, refused=refused), kept)


def canonical(value: object) -> bytes:
    """JSON with sorted names and no spaces, in UTF-8: the same value, the same bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _listed(body: bytes) -> list[Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise Rejected(400, "invalid_request", "the body is not JSON") from None
    listed = data.get("observations") if isinstance(data, dict) else None
    if not isinstance(listed, list):
        raise Rejected(400, "invalid_request", "`observations` must be a list")
    if len(listed) > _MOST:
        raise Rejected(400, "invalid_request", f"`observations` holds {len(listed):,}; at most {_MOST:,} are judged")
    return listed


def _known_fields(observation: dict[str, Any]) -> dict[str, Any]:
    known = {name: observation[name] for name in _FIELDS if observation.get(name) is not None}
    citations = [{name: c[name] for name in _CITATION_FIELDS if name in c} for c in observation["citations"]]
    return {**known, "citations": citations}


def _problem(observation: Any, practices: Collection[str] | None, seen: Collection[str]) -> str | None:
    if not isinstance(observation, dict):
        return "an observation is an object"
    slug, outcome, severity = (observation.get(name) for name in ("practiceSlug", "outcome", "severity"))
    if not isinstance(slug, str) or not slug or (practices is not None and slug not in practices):
        return "practiceSlug: not a practice of this review"
    if slug in seen:
        return "practiceSlug: this practice has an observation already"
    if outcome not in _OUTCOMES:
        return f"outcome: must be one of {', '.join(_OUTCOMES)}"
    if (outcome == "NOT_MET") != (severity is not None):
        return "severity: belongs to NOT_MET, and to nothing else"
    if severity is not None and severity not in _SEVERITIES:
        return f"severity: must be one of {', '.join(_SEVERITIES)}"
    if not isinstance(observation.get("summary"), str) or not observation["summary"].strip():
        return "summary: must be a text that is not empty"
    return _citation_problem(observation.get("citations"))


def _citation_problem(citations: object) -> str | None:
    if not isinstance(citations, list):
        return "citations: must be a list"
    for citation in citations:
        if not isinstance(citation, dict) or not isinstance(citation.get("path"), str) or not citation["path"]:
            return "citations: each names a path"
        first, last = citation.get("startLine"), citation.get("endLine")
        if type(first) is not int or type(last) is not int or not 1 <= first <= last <= _LAST_LINE:
            return "citations: startLine and endLine are lines from 1, in order"
        if not isinstance(citation.get("quote", ""), str):
            return "citations: quote is a text"
    return None
