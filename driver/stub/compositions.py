"""The composition that follows a review: what its run is told, and under which terms it runs."""

from typing import Any, Final

from driver.stub.observations import Admissions
from driver.stub.runs import AgentRun
from driver.stub.scenario import RunTable

_CHANNELS: Final = {
    "inline": {"maxUnits": 20, "maxCharacters": 2_000},
    "summary": {"maxUnits": 20, "maxCharacters": 4_000},
}


def composition_of(run: AgentRun, table: RunTable, admissions: Admissions | None) -> RunTable | None:
    """The run that composes the feedback of a completed review, or None when there is nothing to compose.

    There is one where the scenario asks for it and at least one observation was admitted.
    """
    if table.compose is None or admissions is None or not admissions.observations:
        return None
    told: dict[str, Any] = {
        "observations": admissions.observations,
        "digest": admissions.answer.digest,
        "channels": _CHANNELS,
        "history": [],
        **table.compose.context,
    }
    terms = table.compose.model_dump(exclude={"context"})
    terms |= {"id": table.composed_by(run.terms.id), "subject": run.terms.subject}
    return RunTable(**terms, kind="REVIEW_COMPOSE", context=told)
