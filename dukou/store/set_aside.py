"""Spool records that could not be made into turns, kept byte for byte with their error."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, delete, exists, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from dukou.store.tables import set_aside, turns

# How many records have no row in `turns` (which has a state for each of its rows).
_WITHOUT_ROW = text("""
    select count(*) from set_aside a where not exists (select from turn_states s where s.turn_id = a.id)
""")
# Deletes the state of a turn that only says that its request could not be read.
_REMOVE_STATE = text("""
    delete from turn_states s
    using turns t
    where s.turn_id = :id and t.id = :id and t.untrainable_reason = 'unreadable'
""")
# Deletes that turn.
_REMOVE_TURN = text("""
    delete from turns where id = :id and untrainable_reason = 'unreadable'
""")
# Deletes the session that was made for it, unless other turns are in it.
_REMOVE_SESSION = text("""
    delete from sessions s
    where s.id = :session and s.source = 'new'
      and not exists (select from turns t where t.tenant = s.tenant and t.session_id = s.id)
""")


@dataclass(frozen=True, slots=True)
class SetAside:
    """One row of `set_aside`, without its bytes."""

    id: UUID
    error: str
    size: int  # bytes of the records
    created_at: datetime
    has_row: bool  # `turns` shows that there was such a request


def put(connection: Connection, turn_id: UUID, error: str, record: bytes) -> None:
    """Keeps the records; where they are kept already, the newer error counts."""
    row = {"id": turn_id, "error": error, "record": record}
    upsert = insert(set_aside).values(row)
    connection.execute(upsert.on_conflict_do_update(index_elements=["id"], set_={"error": error}))


def listed(connection: Connection) -> list[SetAside]:
    """All that is set aside, oldest first."""
    has_row = exists().where(turns.c.id == set_aside.c.id)
    query = select(
        set_aside.c.id,
        set_aside.c.error,
        func.octet_length(set_aside.c.record),
        set_aside.c.created_at,
        has_row,
    ).order_by(set_aside.c.created_at, set_aside.c.id)
    return [SetAside(*row) for row in connection.execute(query)]


def count_without_row(connection: Connection) -> int:
    """How many requests are only here: those that have a row in `turns` are not counted."""
    return connection.scalar(_WITHOUT_ROW) or 0


def take(connection: Connection, turn_id: UUID) -> bytes | None:
    """The records, which are no longer set aside when the caller commits; None where there are none."""
    statement = delete(set_aside).where(set_aside.c.id == turn_id).returning(set_aside.c.record)
    return connection.scalar(statement)


def replace_error(connection: Connection, turn_id: UUID, error: str) -> None:
    """Writes down why the records could not be drained this time."""
    connection.execute(update(set_aside).where(set_aside.c.id == turn_id).values(error=error))


def remove_unreadable(connection: Connection, turn_id: UUID) -> None:
    """Deletes a row that only says that a request could not be read, and the session made for it."""
    for statement in (_REMOVE_STATE, _REMOVE_TURN, _REMOVE_SESSION):
        connection.execute(statement, {"id": turn_id, "session": turn_id.hex})
