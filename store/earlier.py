"""Turns found again: what lineage asks of the past.

There are three digests, each with an index: `history_hash` (messages and answer: what a continuation begins
with), `prompt_hash` (messages alone: what a repeated request has) and `exchange_hash` (the last message and
the answer: what a window of the conversation ends with). Digests begin at the key, so what
matches is of the same key. Nothing here reads a history.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, TextClause, text

from store import wire
from store.turn_rows import Place, TurnRow

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
    given: dict[str, wire.Array] = {}
    digests = {"history_hash": histories, "prompt_hash": prompts, "exchange_hash": exchanges}
    for column, keys in digests.items():
        _give(given, column, list(keys), wire.blobs)
    _give(given, "id", list(ids), wire.uuids)
    if not given:
        return []
    asked = tuple([column for column in (*digests, "id") if column in given])
    return [Earlier(**row) for row in connection.execute(_find(asked), given).mappings()]


def in_sessions(connection: Connection, wanted: Sequence[InSession]) -> list[Earlier]:
    """What `find` may have missed because other sessions read alike: among a session's newest turns."""
    given = {
        "tenants": wire.texts([one.tenant for one in wanted]),
        "sessions": wire.texts([one.session for one in wanted]),
        "histories": wire.blobs([one.history for one in wanted]),
        "prompts": wire.blobs([one.prompt for one in wanted]),
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
        "tenants": wire.texts([tenant for tenant, _ in wanted]),
        "sessions": wire.texts([session for _, session in wanted]),
    }
    return {(row[0], row[1], row[2]): row[3] for row in connection.execute(_LAST_ORDINALS, given)}


def _give(
    given: dict[str, wire.Array],
    column: str,
    keys: Sequence[tuple[str, Any]],
    array: Callable[[list[Any]], wire.Array],
) -> None:
    if keys:
        given[f"{column}_of"] = wire.texts([tenant for tenant, _ in keys])
        given[column] = array([value for _, value in keys])


@lru_cache
def _find(columns: tuple[str, ...]) -> TextClause:
    """One round trip for all; no branch that nobody asks for, since each is planned anew every time."""
    branches = [
        _WITH_ID if column == "id" else _NEWEST_WITH.format(column=column, limit=NEWEST) for column in columns
    ]
    return text(f"select {_COLUMNS} from turns t where t.id in ({' union '.join(branches)})")
