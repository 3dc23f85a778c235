"""Siblings: several answers to the same prompt of one session, of which the user went on from one."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, text

from store.windows import first_id

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
