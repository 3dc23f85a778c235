"""Turns found again: what lineage asks of the past.

There are three digests, each with an index: `history_hash` (messages and answer: what a continuation begins
with), `prompt_hash` (messages alone: what a repeated request has) and `exchange_hash` (the last message and
the answer: what a window of the conversation ends with). Digests begin at the key, so what
matches is of the same key. Nothing here reads a history.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, TextClause, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA
from sqlalchemy.types import Uuid

_COLUMNS = """
    t.id, t.request_id, t.key_id, t.user_name, t.session_id, t.segment_id, t.parent_id, t.parent_messages,
    t.kind, t.kind_reason, t.status, t.history_hash, t.prompt_hash, t.exchange_hash,
    case when t.status <> 'ok' or t.kind_reason = 'summary' then t.response_text end as response_text,
    t.client_request_id, t.started_at, t.finished_at,
    coalesce(
        (select true from turns child where child.parent_id = t.id and child.kind = 'main' limit 1), false
    ) as continued
"""
# Not EXISTS: the planner may hash it, and would then read every turn there is.


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


def find(
    connection: Connection,
    tenants: Iterable[str],
    histories: Iterable[bytes] = (),
    prompts: Iterable[bytes] = (),
    ids: Iterable[UUID] = (),
    exchanges: Iterable[bytes] = (),
) -> list[Earlier]:
    """The turns of these tenants that have one of the digests or ids: an index look-up each."""
    given = {
        "tenants": sorted(set(tenants)),
        "histories": list(histories),
        "prompts": list(prompts),
        "exchanges": list(exchanges),
        "ids": list(ids),
    }
    return [Earlier(**row) for row in connection.execute(_FIND, given).mappings()]


def summaries(connection: Connection, tenant: str, key_id: str | None) -> list[Earlier]:
    """The newest summaries that clients of this key had made, newest first."""
    rows = connection.execute(_SUMMARIES, {"tenant": tenant, "key_id": key_id}).mappings()
    return [Earlier(**row) for row in rows]


def last_ordinals(
    connection: Connection, sessions: Iterable[tuple[str, str]]
) -> dict[tuple[str, str, str], int]:
    """(tenant, session id, kind) → the highest ordinal among its newest turns; `sessions`: (tenant, id)."""
    wanted = sorted(set(sessions))
    given = {"tenants": _column(wanted, 0), "sessions": _column(wanted, 1)}
    return {(row[0], row[1], row[2]): row[3] for row in connection.execute(_LAST_ORDINALS, given)}


def _column(pairs: Sequence[tuple[str, str]], index: int) -> list[str]:
    return [pair[index] for pair in pairs]


# Each branch has an index of its own; together they are one round trip.
_FIND: TextClause = text(
    f"select {_COLUMNS} from turns t where t.id in ("
    " select id from turns where tenant = any(cast(:tenants as text[])) and history_hash = any(:histories)"
    " union select id from turns where tenant = any(cast(:tenants as text[])) and prompt_hash = any(:prompts)"
    " union select id from turns where tenant = any(cast(:tenants as text[]))"
    "   and exchange_hash = any(:exchanges)"
    " union select id from turns where tenant = any(cast(:tenants as text[])) and id = any(:ids))"
).bindparams(
    bindparam("exchanges", type_=ARRAY(BYTEA())),
    bindparam("histories", type_=ARRAY(BYTEA())),
    bindparam("prompts", type_=ARRAY(BYTEA())),
    bindparam("ids", type_=ARRAY(Uuid())),
)
_SUMMARIES: TextClause = text(
    f"select {_COLUMNS} from turns t where t.tenant = :tenant and t.kind_reason = 'summary'"
    " and t.key_id is not distinct from cast(:key_id as text) order by t.started_at desc limit 20"
)
_LAST_ORDINALS: TextClause = text(
    "select wanted.tenant, wanted.session_id, newest.kind, max(newest.ordinal)"
    " from unnest(cast(:tenants as text[]), cast(:sessions as text[])) as wanted (tenant, session_id)"
    " cross join unnest(array['main', 'side']) as word (kind)"
    " cross join lateral ("
    "   select t.kind, t.ordinal from turns t"
    "   where t.tenant = wanted.tenant and t.session_id = wanted.session_id and t.kind = word.kind"
    "   order by t.started_at desc limit 16) as newest"
    " group by 1, 2, 3"
)
