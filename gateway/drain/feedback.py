"""Feedback records to rows. Pure but for `write`, which stands in the drainer's transaction."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Connection

from gateway.drain.assemble import choice_id
from gateway.spool.format import Record
from store import feedback
from store.feedback import Feedback


def read(record: Record) -> Feedback:
    """The row of a feedback record.

    Raises:
        KeyError, TypeError, ValueError: no gateway of ours wrote it.
    """
    meta = record.meta
    said: Mapping[str, Any] = orjson.loads(record.body)
    named = said.get("turn_id")
    return Feedback(
        id=UUID(meta["id"]),
        tenant=str(meta["tenant"]),
        key_id=meta.get("key_id"),
        rater=_text(said.get("user")),
        named_turn=None if named is None else choice_id(UUID(named), int(said.get("choice_index", 0))),
        session_id=_text(said.get("session_id")),
        rating=said.get("rating"),
        score=said.get("score"),
        comment=_text(said.get("comment")),
        correction=_text(said.get("correction")),
        outcome=_clean(said.get("outcome")),
        given_at=datetime.fromtimestamp(meta["at_ns"] / 1e9, UTC),
    )


def write(connection: Connection, rows: Iterable[Feedback]) -> None:
    """In one transaction; a row that is there already stays as it is."""
    feedback.record(connection, rows)


def _text(value: Any) -> str | None:
    """Text that Postgres takes: without NUL."""
    return None if value is None else str(value).replace("\0", "\ufffd")


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return {_text(name): _clean(item) for name, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value
