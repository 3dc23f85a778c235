"""Feedback records to rows. Pure but for `write`, which stands in the drainer's transaction."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from dukou.store import feedback
from dukou.store.feedback import Feedback
from gateway.drain.assemble import choice_id
from gateway.spool.format import Record
from gateway.spool.records import FeedbackRecord


def read(record: Record) -> Feedback:
    """The row of a feedback record.

    Raises:
        ValueError: no gateway of ours wrote it.
    """
    said = FeedbackRecord.decode(record)
    named = said.turn_id
    return Feedback(
        id=UUID(said.id),
        tenant=said.tenant,
        key_id=said.key_id,
        rater=_text(said.user),
        named_turn=None if named is None else choice_id(UUID(named), said.choice_index),
        session_id=_text(said.session_id),
        rating=said.rating,
        score=said.score,
        comment=_text(said.comment),
        correction=_text(said.correction),
        outcome=_clean(said.outcome),
        given_at=datetime.fromtimestamp(said.at_ns / 1e9, UTC),
    )


def write(connection: Connection, rows: Iterable[Feedback]) -> None:
    """In one transaction; a row that is there already stays as it is."""
    feedback.record(connection, rows)


def _text(value: str | None) -> str | None:
    """Text that Postgres takes: without NUL."""
    return None if value is None else value.replace("\0", "\ufffd")


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return {_text(name): _clean(item) for name, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value
