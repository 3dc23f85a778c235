"""Turns whose parent was not there when they were written, and what is changed when it comes."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, delete, select, text
from sqlalchemy.dialects.postgresql import insert

from store import whole, wire
from store.earlier import Earlier
from store.tables import orphans, turns

# Turns that miss a parent with one of these prompt digests or ids.
_MISSING = text("""
    select *
    from orphans
    where tenant = any(cast(:tenants as text[]))
      and (prompt_hash = any(cast(:prompts as bytea[])) or parent_id = any(cast(:ids as uuid[])))
    order by turn_id
""")
# Puts all choices of a request below the parent.
_LINK = text("""
    update turns set parent_id = :parent, parent_messages = :messages, prefix_ok = null
    where tenant = :tenant and session_id = :session and request_id = :request
""")
# Makes the segment that the request began a part of its parent's.
_MOVE_SEGMENT = text("""
    update turns set segment_id = :new_segment
    where tenant = :tenant and session_id = :session and segment_id = :segment
""")
# Gives the parent's session the later last turn of the two, with how it ended.
_MERGE_SESSION = text("""
    update sessions s set
        last_turn_at = greatest(s.last_turn_at, o.last_turn_at),
        done_at = case when o.last_turn_at > s.last_turn_at then o.done_at else s.done_at end,
        done_reason = case when o.last_turn_at > s.last_turn_at then o.done_reason else s.done_reason end
    from sessions o
    where o.tenant = :tenant and o.id = :session and s.tenant = :tenant and s.id = :new_session
""")
# Moves the turns of the request's session into the parent's.
_MOVE_SESSION = text("""
    update turns set
        session_id = :new_session,
        session_source = case when session_source = 'new' then 'lineage' else session_source end
    where tenant = :tenant and session_id = :session
""")
# Removes the session that is empty now.
_END_SESSION = text("""
    delete from sessions where tenant = :tenant and id = :session
""")
# Numbers the turns of the parent's session anew.
_COUNT_AGAIN = text("""
    update turns t set ordinal = counted.n
    from (
        select id, row_number() over (partition by kind order by started_at, id) - 1 as n
        from turns
        where tenant = :tenant and session_id = :new_session
    ) as counted
    where t.id = counted.id and t.ordinal <> counted.n
""")
# The turn before the parent was taken to be followed by the child: it is followed by the parent.
_NEXT_STATE = text("""
    update turn_states s set next_turn_id = p.request_id, changed_at = now()
    from turns p
    where p.id = :parent and p.kind = 'main' and s.turn_id = p.parent_id
      and s.next_turn_id = :request and s.stage in ('awaiting_next', 'scorable')
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A row of `orphans`."""

    turn_id: UUID
    tenant: str
    history_hash: bytes | None
    prompt_hash: bytes | None
    parent_id: UUID | None
    messages: int | None
    brings_more: bool
    names_session: bool


def keep(connection: Connection, rows: Sequence[Orphan]) -> None:
    """Remembers turns that miss their parent."""
    if rows:
        connection.execute(insert(orphans).on_conflict_do_nothing(), [asdict(row) for row in rows])


def missing(
    connection: Connection, tenants: Iterable[str], prompts: Iterable[bytes], ids: Iterable[UUID]
) -> list[Orphan]:
    """Those whose parent may be a turn with one of these prompt digests or ids, oldest first."""
    given = {"tenants": wire.texts(set(tenants)), "prompts": wire.blobs(prompts), "ids": wire.uuids(ids)}
    return [Orphan(**row) for row in connection.execute(_MISSING, given).mappings()]


def newest_since(connection: Connection, first: UUID, limit: int) -> list[Orphan]:
    """The newest of the turns from `first` on, oldest first."""
    query = select(orphans).where(orphans.c.turn_id >= first).order_by(orphans.c.turn_id.desc()).limit(limit)
    return [Orphan(**row) for row in connection.execute(query).mappings()][::-1]


def give_up_before(connection: Connection, first: UUID) -> None:
    """Gives up on turns older than `first`: deletes their rows."""
    connection.execute(delete(orphans).where(orphans.c.turn_id < first))


def messages_of(connection: Connection, turn_id: UUID) -> Any:
    """The request's messages in full."""
    return connection.scalar(select(whole.messages(turns)).where(turns.c.id == turn_id))


def adopt(connection: Connection, orphan: Orphan, child: Earlier, parent: Earlier) -> None:
    """Puts a turn, with all its choices, below its parent, and what stands on it into the parent's session.

    The session that the child began moves as a whole; one that the client named stays. The segment that it
    began goes on the parent's.
    """
    given = {
        "tenant": orphan.tenant,
        "request": orphan.turn_id,
        "session": child.session_id,
        "segment": child.segment_id,
        "parent": parent.id,
        "messages": orphan.messages,
        "new_session": parent.session_id,
        "new_segment": parent.segment_id,
    }
    connection.execute(_LINK, given)
    if child.segment_id == orphan.turn_id:
        connection.execute(_MOVE_SEGMENT, given)
    if child.session_id != parent.session_id and child.session_id == orphan.turn_id.hex:
        for statement in (_MERGE_SESSION, _MOVE_SESSION, _END_SESSION):
            connection.execute(statement, given)
    connection.execute(_COUNT_AGAIN, given)
    connection.execute(_NEXT_STATE, given)
    connection.execute(delete(orphans).where(orphans.c.turn_id == orphan.turn_id))
