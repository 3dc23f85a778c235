"""Sessions: when they were last spoken in, and when they are over.

A session that is over brings no more next states: its turns that wait for one are dropped as
`no_next_state`. Where the user comes back all the same, the session is open again, and `turns.followed`
takes the drop back.

Windows of time over turns: their ids are UUIDv7, so a moment is an id, and the key an index on time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text, tuple_, update

from dukou.store import binary
from dukou.store.tables import sessions

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
        "tenants": binary.texts([row.tenant for row in rows]),
        "ids": binary.texts([row.id for row in rows]),
        "keys": binary.texts([row.key_id for row in rows]),
        "sources": binary.texts([row.source for row in rows]),
        "moments": binary.moments([row.at for row in rows]),
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


# Main turns of a window that may be trained and were followed, each with the turn that followed it.
_JUDGEABLE = text("""
    select s.turn_id, next.id
    from turn_states s
    join turns t on t.id = s.turn_id and t.kind = 'main' and t.trainable
    cross join lateral (
        select coalesce(s.next_turn_id, (
            select c.id from turns c where c.parent_id = s.turn_id and c.kind = 'main' order by c.id limit 1
        )) as id
    ) as next
    where s.turn_id >= :first and s.turn_id < :last and next.id is not null
      and s.reason is distinct from 'sampling_truncated'
    order by s.turn_id
    limit :limit
""")
# The scores of a window's turns: from whom, the value, and the tokens of the answer.
_GIVEN_SCORES = text("""
    select sc.turn_id,
           case when sc.reason = 'feedback' then 'feedback' else sc.judge || ' ' || sc.rubric end, sc.value,
           cardinality(t.response_ids)
    from scores sc
    join turns t on t.id = sc.turn_id
    where sc.turn_id >= :first and sc.turn_id < :last and sc.value is not null
    order by sc.turn_id
""")


@dataclass(frozen=True, slots=True)
class Window:
    """From `since` on, up to and without `until`; None is open."""

    since: datetime | None = None
    until: datetime | None = None

    @property
    def ids(self) -> dict[str, UUID]:
        """The first id in it and the first behind it."""
        last = UUID(int=(1 << 128) - 1)
        first = UUID(int=0) if self.since is None else first_id(self.since)
        return {"first": first, "last": last if self.until is None else first_id(self.until)}


def first_id(moment: datetime) -> UUID:
    """The least id that a turn of this moment can have."""
    return UUID(int=max(0, int(moment.timestamp() * 1000)) << 80)


def judgeable(
    connection: Connection, window: Window, after: UUID | None, limit: int
) -> list[tuple[UUID, UUID]]:
    """(turn, the turn that followed it) of main turns that may be trained and were followed, in order.

    Without those that the learner left out unjudged, by how they were sampled.
    """
    given = window.ids
    if after is not None:
        given["first"] = UUID(int=after.int + 1)
    return [(row[0], row[1]) for row in connection.execute(_JUDGEABLE, given | {"limit": limit})]


class GivenScore(NamedTuple):
    """A score that is not NULL."""

    turn_id: UUID
    side: str  # who gave it: "feedback", or judge and rubric
    value: float
    tokens: int | None  # of the answer; None where they are not known


def given_scores(connection: Connection, window: Window) -> list[GivenScore]:
    """Every score of the window's turns that is not NULL, in order of the turns."""
    return [GivenScore(*row) for row in connection.execute(_GIVEN_SCORES, window.ids)]
