"""Turns found again: what lineage asks of the past.

There are three digests, each with an index: `history_hash` (messages and answer: what a continuation begins
with), `prompt_hash` (messages alone: what a repeated request has) and `exchange_hash` (the last message and
the answer: what a window of the conversation ends with). Digests begin at the key, so what
matches is of the same key. Nothing here reads a history.

Turns whose parent was not there when they were written, and what is changed when it comes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, TextClause, delete, select, text
from sqlalchemy.dialects.postgresql import insert

from dukou.store import binary, contents
from dukou.store.tables import orphans, turns
from dukou.store.turn_rows import Place, TurnRow

# The columns of Earlier. Not EXISTS: the planner may hash it, and would then read every turn there is.
_COLUMNS = """
    t.id, t.request_id, t.key_id, t.user_name, t.session_id, t.segment_id, t.parent_id, t.parent_messages,
    t.kind, t.kind_reason, t.status, t.history_hash, t.prompt_hash, t.exchange_hash,
    case when t.status <> 'ok' or t.kind_reason = 'summary' then t.response_text end as response_text,
    t.client_request_id, t.started_at, t.finished_at,
    coalesce(
        (select true from turns child where child.parent_id = t.id and child.kind = 'main' limit 1), false
    ) as continued
"""

NEWEST = 32  # turns that read alike, of which lineage looks at: a health check's "ping" is sent all day
OF_SESSION = 256  # turns of one session, likewise

# The ids of the newest turns with each of the given digests: an index look-up per digest.
_NEWEST_WITH = """
    select found.id
    from unnest(cast(:{column}_of as text[]), cast(:{column} as bytea[])) as wanted (tenant, digest)
    cross join lateral (
        select id
        from turns
        where tenant = wanted.tenant and {column} = wanted.digest
        order by started_at desc
        limit {limit}
    ) as found
"""
# Those of the given ids that are turns of their tenant.
_WITH_ID = """
    select named.id
    from unnest(cast(:id_of as text[]), cast(:id as uuid[])) as wanted (tenant, id)
    join turns named on named.id = wanted.id and named.tenant = wanted.tenant
"""
# Turns with one of two digests among the newest of a session.
_IN_SESSIONS = text(f"""
    select {_COLUMNS}
    from turns t
    where t.id in (
        select newest.id
        from unnest(
            cast(:tenants as text[]), cast(:sessions as text[]), cast(:histories as bytea[]),
            cast(:prompts as bytea[])
        ) as wanted (tenant, session_id, history_hash, prompt_hash)
        cross join lateral (
            select id, history_hash, prompt_hash
            from turns
            where tenant = wanted.tenant and session_id = wanted.session_id
            order by started_at desc
            limit {OF_SESSION}
        ) as newest
        where newest.history_hash = wanted.history_hash or newest.prompt_hash = wanted.prompt_hash
    )
""")
# The newest summaries of a key.
_SUMMARIES = text(f"""
    select {_COLUMNS}
    from turns t
    where t.tenant = :tenant and t.kind_reason = 'summary'
      and t.key_id is not distinct from cast(:key_id as text)
    order by t.started_at desc
    limit 20
""")
# The highest ordinal among the newest turns of each session, per kind of turn.
_LAST_ORDINALS = text("""
    select wanted.tenant, wanted.session_id, newest.kind, max(newest.ordinal)
    from unnest(cast(:tenants as text[]), cast(:sessions as text[])) as wanted (tenant, session_id)
    cross join unnest(array['main', 'side']) as word (kind)
    cross join lateral (
        select t.kind, t.ordinal
        from turns t
        where t.tenant = wanted.tenant and t.session_id = wanted.session_id and t.kind = word.kind
        order by t.started_at desc
        limit 16
    ) as newest
    group by 1, 2, 3
""")

Key = tuple[str, bytes]  # tenant and digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What lineage needs to know of a turn that is recorded already."""

    id: UUID
    request_id: UUID
    key_id: str | None
    user_name: str | None
    session_id: str
    segment_id: UUID
    parent_id: UUID | None
    parent_messages: int | None
    kind: str
    kind_reason: str | None
    status: str
    history_hash: bytes | None
    prompt_hash: bytes | None
    exchange_hash: bytes | None
    response_text: str | None  # read only where the answer was cut off, or is a summary
    client_request_id: str | None
    started_at: datetime
    finished_at: datetime | None
    continued: bool  # it is the parent of a main turn

    @classmethod
    def of(cls, row: TurnRow, where: Place) -> "Earlier":
        """A turn that is about to be written, as those after it find it."""
        return cls(
            id=row.id,
            request_id=row.request_id,
            key_id=row.key_id,
            user_name=row.user_name,
            session_id=where.session_id,
            segment_id=where.segment_id,
            parent_id=where.parent_id,
            parent_messages=where.parent_messages,
            kind=row.kind,
            kind_reason=row.kind_reason,
            status=row.status,
            history_hash=row.history_hash,
            prompt_hash=row.prompt_hash,
            exchange_hash=row.exchange_hash,
            response_text=row.response_text,
            client_request_id=row.client_request_id,
            started_at=row.started_at,
            finished_at=row.finished_at,
            continued=False,
        )


@dataclass(frozen=True, slots=True)
class InSession:
    """The last answer in a request whose client names the session."""

    tenant: str
    session: str
    history: bytes
    prompt: bytes


def find(
    connection: Connection,
    *,
    histories: Iterable[Key] = (),
    prompts: Iterable[Key] = (),
    exchanges: Iterable[Key] = (),
    ids: Iterable[tuple[str, UUID]] = (),
) -> list[Earlier]:
    """The turns with one of these digests, the NEWEST of each, or one of these ids; all with their tenant."""
    given: dict[str, binary.Array] = {}
    digests = {"history_hash": histories, "prompt_hash": prompts, "exchange_hash": exchanges}
    for column, keys in digests.items():
        _give(given, column, list(keys), binary.blobs)
    _give(given, "id", list(ids), binary.uuids)
    if not given:
        return []
    asked = tuple([column for column in (*digests, "id") if column in given])
    return [Earlier(**row) for row in connection.execute(_find(asked), given).mappings()]


def in_sessions(connection: Connection, wanted: Sequence[InSession]) -> list[Earlier]:
    """What `find` may have missed because other sessions read alike: among a session's newest turns."""
    given = {
        "tenants": binary.texts([one.tenant for one in wanted]),
        "sessions": binary.texts([one.session for one in wanted]),
        "histories": binary.blobs([one.history for one in wanted]),
        "prompts": binary.blobs([one.prompt for one in wanted]),
    }
    return [Earlier(**row) for row in connection.execute(_IN_SESSIONS, given).mappings()] if wanted else []


def summaries(connection: Connection, tenant: str, key_id: str | None) -> list[Earlier]:
    """The newest summaries that clients of this key had made, newest first."""
    rows = connection.execute(_SUMMARIES, {"tenant": tenant, "key_id": key_id}).mappings()
    return [Earlier(**row) for row in rows]


def last_ordinals(
    connection: Connection, sessions: Iterable[tuple[str, str]]
) -> dict[tuple[str, str, str], int]:
    """(tenant, session id, kind) → the highest ordinal among its newest turns; `sessions`: (tenant, id)."""
    wanted = sorted(set(sessions))
    given = {
        "tenants": binary.texts([tenant for tenant, _ in wanted]),
        "sessions": binary.texts([session for _, session in wanted]),
    }
    return {(row[0], row[1], row[2]): row[3] for row in connection.execute(_LAST_ORDINALS, given)}


def _give(
    given: dict[str, binary.Array],
    column: str,
    keys: Sequence[tuple[str, Any]],
    array: Callable[[list[Any]], binary.Array],
) -> None:
    if keys:
        given[f"{column}_of"] = binary.texts([tenant for tenant, _ in keys])
        given[column] = array([value for _, value in keys])


@lru_cache
def _find(columns: tuple[str, ...]) -> TextClause:
    """One round trip for all; no branch that nobody asks for, since each is planned anew every time."""
    branches = [
        _WITH_ID if column == "id" else _NEWEST_WITH.format(column=column, limit=NEWEST) for column in columns
    ]
    return text(f"select {_COLUMNS} from turns t where t.id in ({' union '.join(branches)})")


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
    given = {
        "tenants": binary.texts(set(tenants)),
        "prompts": binary.blobs(prompts),
        "ids": binary.uuids(ids),
    }
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
    return connection.scalar(select(contents.messages(turns)).where(turns.c.id == turn_id))


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
