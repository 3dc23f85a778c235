"""Answers that nothing followed although their conversation went on beside them, on another way."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, select, text

from store import whole
from store.tables import turns
from store.windows import first_id

# Turns without a next state or a score, each with a later turn beside it: below the same parent, and with
# more messages, so that it may hold this turn's question and an answer to it.
_FORKED = text("""
    select s.turn_id, beside.id
    from sessions e
    join turns t on t.tenant = e.tenant and t.session_id = e.id
    join turn_states s on s.turn_id = t.id
    cross join lateral (
        select o.id, o.started_at
        from turns o
        where o.tenant = t.tenant and o.session_id = t.session_id
          and o.started_at > t.started_at and o.kind = 'main' and o.key_id is not distinct from t.key_id
          and o.parent_id is not distinct from t.parent_id and o.message_count > t.message_count + 1
        order by o.started_at
        limit 3
    ) as beside
    where e.done_at >= :ended and s.turn_id >= :first and t.id >= :first
      and s.stage = 'dropped' and s.reason = 'no_next_state' and t.status = 'ok'
      and not exists (select from scores sc where sc.turn_id = t.id and sc.value is not null)
    order by s.turn_id, beside.started_at
""")


@dataclass(frozen=True, slots=True)
class Fork:
    messages: list[Any]
    answer: str
    later: list[Any]  # the messages of a request that went on beside this answer


def forked(connection: Connection, since: datetime, ended: datetime) -> list[tuple[UUID, UUID]]:
    """(turn, a later turn beside it), in order: of turns since then that have neither a next state nor a
    score, and whose sessions ended after `ended`."""
    rows = connection.execute(_FORKED, {"first": first_id(since), "ended": ended})
    return [(row[0], row[1]) for row in rows]


def read(connection: Connection, turn_id: UUID, beside: UUID) -> Fork | None:
    """None where either is gone."""
    other = turns.alias("other")
    query = select(whole.messages(turns), turns.c.response_text, whole.messages(other))
    both = turns.join(other, other.c.id == beside)
    row = connection.execute(query.select_from(both).where(turns.c.id == turn_id)).one_or_none()
    return None if row is None else Fork(row[0] or [], row[1] or "", row[2] or [])
