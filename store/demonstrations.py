"""Demonstrations: corrected answers, for export and SFT. A newer one of a source replaces the old."""

from uuid import UUID

from sqlalchemy import Connection, func
from sqlalchemy.dialects.postgresql import insert

from store.tables import demonstrations


def record(
    connection: Connection,
    turn_id: UUID,
    source: str,
    answer: str,
    hint: str | None = None,
    call_id: int | None = None,
) -> None:
    """Writes how the answer should have been, according to `source` (feedback, edit or teacher:<model>)."""
    facts = {"answer": answer, "hint": hint, "call_id": call_id}
    statement = insert(demonstrations).values(turn_id=turn_id, source=source, **facts)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["turn_id", "source"], set_={**facts, "created_at": func.now()}
        )
    )
