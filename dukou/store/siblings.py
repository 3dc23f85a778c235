"""Siblings: several answers to the same prompt of one session, of which the user went on from one.

Answers that nothing followed although their conversation went on beside them, on another way.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, select, text

from dukou.store import contents
from dukou.store.sessions import first_id
from dukou.store.tables import turns

# Turns that were dropped although the user went on from another answer to the same prompt: that answer has a
# main child. Where both read the same (`history_hash`), the user went on from this one as well.
_ABANDONED = text("""
    select s.turn_id
    from turn_states s
    join turns t on t.id = s.turn_id
    where s.turn_id >= :first and s.stage = 'dropped' and s.reason = 'no_next_state'
      and t.trainable and t.prompt_hash is not null
      and exists (
          select from turns o
          where o.tenant = t.tenant and o.prompt_hash = t.prompt_hash
            and o.session_id = t.session_id and o.kind = 'main' and o.id <> t.id
            and (o.history_hash = t.history_hash) is not true
            and exists (select from turns c where c.parent_id = o.id and c.kind = 'main')
      )
      and not exists (select from scores sc where sc.turn_id = t.id and sc.value is not null)
    limit :limit
    for update of s skip locked
""")


def abandoned(connection: Connection, since: datetime, limit: int) -> list[UUID]:
    """Turns since then that ended without a next state although the user went on from another answer, locked.

    Their states were dropped as `no_next_state`: no conversation goes on from them any more.
    """
    given = {"first": first_id(since), "limit": limit}
    return list(connection.scalars(_ABANDONED, given))


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
    query = select(contents.messages(turns), turns.c.response_text, contents.messages(other))
    both = turns.join(other, other.c.id == beside)
    row = connection.execute(query.select_from(both).where(turns.c.id == turn_id)).one_or_none()
    return None if row is None else Fork(row[0] or [], row[1] or "", row[2] or [])
