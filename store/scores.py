"""Scores: what the evidence about a turn comes to; and the reading of what is to be judged."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, ScalarSelect, func, select
from sqlalchemy.dialects.postgresql import insert

from store import whole
from store.tables import scores, turns

FEEDBACK = "feedback"  # the reason of a score that people, or the environment, gave
REGENERATED = "regenerated"  # … that the user asked again and went on from another answer
EDITED = "edited"  # … that the user wrote the answer anew

#: Of a turn's scores the first in this order counts: feedback, then the newest judge, then lineage. (EDITED
#: needs no line of its own: it is only written where there is no score, so that every judge's is newer.)
PRECEDENCE = (
    (scores.c.reason.is_not_distinct_from(FEEDBACK)).desc(),
    scores.c.value.is_(None),
    scores.c.reason.is_not_distinct_from(REGENERATED),
    scores.c.created_at.desc(),
    scores.c.judge,
    scores.c.rubric,
)


def counting() -> ScalarSelect[Any]:
    """The value that counts of a turn of the query around it; NULL where it has none."""
    known = scores.c.turn_id == turns.c.id, scores.c.value.is_not(None)
    return select(scores.c.value).where(*known).order_by(*PRECEDENCE).limit(1).scalar_subquery()


@dataclass(frozen=True, slots=True)
class Score:
    value: float | None  # in [-1, 1]; None with a reason
    reason: str  # majority | tie | no_quorum | abstained | feedback | regenerated | edited
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class JudgedTurn:
    """A turn and the request that followed it, as recorded."""

    messages: list[Any]
    response_text: str | None
    reasoning_text: str | None
    tool_calls: list[Any]
    next_messages: list[Any]  # the following request's messages, in full
    parent_messages: int | None  # how many of them are this turn's history and answer
    tenant: str = "default"
    tools: list[Any] | None = None


def read_judged(connection: Connection, turn_id: UUID, next_turn_id: UUID) -> JudgedTurn | None:
    """What the judge needs to see; None where either turn is gone (forgotten meanwhile)."""
    child = turns.alias("child")
    both = turns.join(child, child.c.id == next_turn_id)
    statement = select(
        whole.messages(turns),
        turns.c.response_text,
        turns.c.reasoning_text,
        turns.c.tool_calls,
        whole.messages(child),
        child.c.parent_messages,
        turns.c.tenant,
        whole.tools(turns),
    )
    statement = statement.select_from(both).where(turns.c.id == turn_id)
    row = connection.execute(statement).one_or_none()
    if row is None:
        return None
    messages, text, reasoning, tool_calls, next_messages, parent_messages, tenant, tools = row
    return JudgedTurn(
        messages or [], text, reasoning, tool_calls or [], next_messages or [], parent_messages, tenant, tools
    )


def record(
    connection: Connection, turn_id: UUID, judge: str, rubric: str, score: Score, *, injection_suspected: bool
) -> None:
    """Writes the score, in the place of an earlier one of this judge and rubric."""
    facts = {
        "value": score.value,
        "reason": score.reason,
        "hint": score.hint,
        "injection_suspected": injection_suspected,
    }
    statement = insert(scores).values(turn_id=turn_id, judge=judge, rubric=rubric, **facts)
    statement = statement.on_conflict_do_update(
        index_elements=["turn_id", "judge", "rubric"], set_={**facts, "created_at": func.now()}
    )
    connection.execute(statement)


def has_feedback(connection: Connection, turn_id: UUID) -> bool:
    """Whether people or the environment said how good the answer was."""
    query = select(scores.c.turn_id).where(
        scores.c.turn_id == turn_id, scores.c.reason == FEEDBACK, scores.c.value.is_not(None)
    )
    return connection.execute(query.limit(1)).first() is not None
