"""Feedback: what people, or the environment, said of a turn; written by the drainer, applied by a scorer.

Feedback may overtake its turn and may come a week late. It is kept as it came; `turn_id` is filled in when
the turn is there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from dukou.store.tables import feedback

#: Feedback whose turn has not come after this time is left alone (it is still there, without a turn).
PATIENCE_HOURS = 24

# Gives new feedback its turn. A session's name may be guessed, a turn's id may not: a session is only found
# by the key that opened it.
_FIND = text("""
    update feedback f set turn_id = found.id
    from feedback g
    cross join lateral (
        (select t.id from turns t where t.id = g.named_turn and t.tenant = g.tenant)
        union all
        (
            select t.id
            from turns t
            where g.named_turn is null and t.tenant = g.tenant
              and t.session_id = g.session_id and t.key_id is not distinct from g.key_id
              and t.kind = 'main' and t.started_at <= g.given_at
            order by t.started_at desc
            limit 1
        )
    ) as found
    where f.id = g.id and g.turn_id is null and g.applied_at is null
      and g.created_at > now() - make_interval(hours => :hours)
""")
# Turns with feedback that their score does not know yet, and that no scorer holds.
_UNAPPLIED = text("""
    select s.turn_id
    from turn_states s
    where s.turn_id in (
        select f.turn_id from feedback f where f.applied_at is null and f.turn_id is not null limit :limit
    )
      and (s.lease_owner is null or s.lease_until < now())
    for update of s skip locked
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """Names a turn, or a session: its last main turn before the feedback."""

    id: UUID
    tenant: str
    key_id: str | None
    rater: str | None
    named_turn: UUID | None
    session_id: str | None
    rating: int | None  # -1, 0, 1
    score: float | None  # in [-1, 1]
    comment: str | None
    correction: str | None
    outcome: dict[str, Any] | None  # {"success": bool, …}
    given_at: datetime


@dataclass(frozen=True, slots=True)
class Opinion:
    """One feedback as the reward sees it."""

    rater: str  # whose last word it may be
    given_at: datetime
    rating: int | None = None
    score: float | None = None
    success: bool | None = None
    comment: str | None = None
    correction: str | None = None


@dataclass(frozen=True, slots=True)
class FeedbackCounts:
    all: int = 0
    unmatched: int = 0  # their turn has not come


def counts(connection: Connection) -> FeedbackCounts:
    """How much feedback there is; an index-only look at the table, which is small beside the turns."""
    row = connection.execute(
        select(func.count(), func.count().filter(feedback.c.turn_id.is_(None))).select_from(feedback)
    ).one()
    return FeedbackCounts(*row)


def record(connection: Connection, rows: Iterable[Feedback]) -> None:
    """Writes feedback; what came before under the same id stays as it is."""
    values = [asdict(row) for row in rows]
    if values:
        connection.execute(insert(feedback).on_conflict_do_nothing(), values)


def find_turns(connection: Connection) -> int:
    """Finds the turns of new feedback; how many were found."""
    return int(connection.execute(_FIND, {"hours": PATIENCE_HOURS}).rowcount)


def unapplied(connection: Connection, limit: int) -> list[UUID]:
    """Turns with feedback that their score does not know yet, locked; not those that a scorer holds."""
    return list(connection.scalars(_UNAPPLIED, {"limit": limit}))


def opinions(connection: Connection, turn_id: UUID) -> list[Opinion]:
    """All that was said of a turn, in order of time."""
    f = feedback.c
    rater = func.concat(func.coalesce(f.key_id, ""), "/", func.coalesce(f.rater, ""))
    success = f.outcome["success"].as_boolean()
    query = select(rater, f.given_at, f.rating, f.score, success, f.comment, f.correction)
    rows = connection.execute(query.where(f.turn_id == turn_id).order_by(f.given_at, f.id))
    return [Opinion(*row) for row in rows]


def mark_applied(connection: Connection, turn_ids: Sequence[UUID]) -> None:
    """What was said of these turns so far has reached their scores."""
    statement = update(feedback).where(feedback.c.turn_id.in_(turn_ids), feedback.c.applied_at.is_(None))
    connection.execute(statement.values(applied_at=func.now()))
