"""Sessions: when they were last spoken in, and when they are over.

A session that is over brings no more next states: its turns that wait for one are dropped as
`no_next_state`. Where the user comes back all the same, the session is open again, and `turns.followed`
takes the drop back.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text, tuple_, update

from store import wire
from store.tables import sessions

_SWEEP = 500  # sessions that one idle sweep closes at most

# Makes sessions, or moves the last turn of those that are there and opens them again.
_TOUCH = text("""
    insert into sessions (tenant, id, key_id, source, last_turn_at)
    select * from unnest(
        cast(:tenants as text[]), cast(:ids as text[]), cast(:keys as text[]),
        cast(:sources as text[]), cast(:moments as timestamptz[])
    )
    on conflict (tenant, id) do update set
        last_turn_at = greatest(sessions.last_turn_at, excluded.last_turn_at),
        done_at = null, done_reason = null
""")
# Ends sessions that were last spoken in before `since`, but for those that another drainer has locked.
_CLOSE_IDLE = text("""
    update sessions s set done_at = :now, done_reason = 'idle'
    from (
        select tenant, id
        from sessions
        where done_at is null and last_turn_at < :since
        order by last_turn_at
        limit :limit
        for update skip locked
    ) as idle
    where s.tenant = idle.tenant and s.id = idle.id
    returning s.tenant, s.id
""")
# Drops the turns of ended sessions that wait for a next state.
_DROP_WAITING = text("""
    update turn_states s set stage = 'dropped', reason = 'no_next_state', changed_at = now()
    from unnest(cast(:tenants as text[]), cast(:sessions as text[])) as ended (tenant, session_id)
    join turns t on t.tenant = ended.tenant and t.session_id = ended.session_id
    where s.turn_id = t.id and s.stage = 'awaiting_next'
""")


@dataclass(frozen=True, slots=True)
class Touch:
    """A turn of this session came."""

    tenant: str
    id: str
    key_id: str | None
    source: str
    at: datetime


def touch(connection: Connection, touches: Iterable[Touch]) -> None:
    """Makes the sessions that are new and moves the others' last turn; idle or closed ones open again."""
    newest: dict[tuple[str, str], Touch] = {}
    for each in sorted(touches, key=lambda touch: touch.at):
        newest[each.tenant, each.id] = each
    if not newest:
        return
    # In one order everywhere: two drainers must not wait for each other.
    rows = [new for _, new in sorted(newest.items())]
    given = {
        "tenants": wire.texts([row.tenant for row in rows]),
        "ids": wire.texts([row.id for row in rows]),
        "keys": wire.texts([row.key_id for row in rows]),
        "sources": wire.texts([row.source for row in rows]),
        "moments": wire.moments([row.at for row in rows]),
    }
    connection.execute(_TOUCH, given)


def close(connection: Connection, ids: Iterable[tuple[str, str]], now: datetime) -> None:
    """Ends sessions, given as (tenant, id), because their client said so."""
    wanted = sorted(set(ids))
    if not wanted:
        return
    connection.execute(
        update(sessions)
        .where(tuple_(sessions.c.tenant, sessions.c.id).in_(wanted))
        .values(done_at=now, done_reason="client")
    )
    _drop_waiting(connection, wanted)


def close_idle(connection: Connection, since: datetime, now: datetime) -> int:
    """Ends sessions whose last turn came before `since`; how many: a full sweep may have left some."""
    rows = connection.execute(_CLOSE_IDLE, {"since": since, "now": now, "limit": _SWEEP}).all()
    _drop_waiting(connection, [(row.tenant, row.id) for row in rows])
    return len(rows)


def _drop_waiting(connection: Connection, ids: list[tuple[str, str]]) -> None:
    if ids:
        given = {"tenants": [tenant for tenant, _ in ids], "sessions": [session for _, session in ids]}
        connection.execute(_DROP_WAITING, given)
