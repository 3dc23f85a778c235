"""Scores: what the evidence about a turn comes to; and the reading of what is to be judged.

Votes: one answer of a judge about a turn, or the reason why there is none.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, ScalarSelect, func, select
from sqlalchemy.dialects.postgresql import insert

from dukou.store import contents
from dukou.store.tables import scores, turns, votes

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
        contents.messages(turns),
        turns.c.response_text,
        turns.c.reasoning_text,
        turns.c.tool_calls,
        contents.messages(child),
        child.c.parent_messages,
        turns.c.tenant,
        contents.tools(turns),
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


OK = "ok"
ABSTAINED = "abstained"


@dataclass(frozen=True, slots=True)
class Vote:
    n: int  # which of the m votes, from 0
    status: str  # ok | abstained | timeout | unreachable | http_500 | unparsable | empty | truncated | …
    value: int | None = None  # -1, 0, 1; None unless status is ok
    hint: str | None = None  # how the answer should have been, in hindsight
    raw: str | None = None  # the judge's own words

    @property
    def came_back(self) -> bool:
        """The judge answered, even if only that it cannot tell: there is nothing to ask again."""
        return self.status in (OK, ABSTAINED)


def came_back(connection: Connection, turn_id: UUID, judge: str, rubric: str) -> list[Vote]:
    """The votes that need not be paid for again, in order."""
    columns = votes.c
    statement = (
        select(columns.n, columns.status, columns.value, columns.hint, columns.raw)
        .where(columns.turn_id == turn_id, columns.judge == judge, columns.rubric == rubric)
        .where(columns.status.in_((OK, ABSTAINED)))
        .order_by(columns.n)
    )
    return [Vote(*row) for row in connection.execute(statement)]


def record_vote(
    connection: Connection, turn_id: UUID, judge: str, rubric: str, vote: Vote, call_id: int | None
) -> None:
    """Writes a vote; it takes the place of an earlier failure, never of a vote that came back."""
    facts = {
        "status": vote.status,
        "value": vote.value,
        "hint": vote.hint,
        "raw": vote.raw,
        "call_id": call_id,
    }
    statement = insert(votes).values(turn_id=turn_id, judge=judge, rubric=rubric, n=vote.n, **facts)
    statement = statement.on_conflict_do_update(
        index_elements=["turn_id", "judge", "rubric", "n"],
        set_={**facts, "created_at": func.now()},
        where=votes.c.status.not_in((OK, ABSTAINED)),
    )
    connection.execute(statement)
