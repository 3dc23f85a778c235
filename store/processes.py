"""What each process does and waits for: the rows behind `learner status` and the page."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, func
from sqlalchemy.dialects.postgresql import insert

from store.tables import processes


def start(connection: Connection, name: str, doing: str) -> None:
    """A process begins: its row, if an earlier run left one, begins anew."""
    _write(connection, name, doing, None, None, {"started_at": func.now()})


def beat(
    connection: Connection,
    name: str,
    doing: str,
    waits_for: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """A process is alive; `waits_for` is the sentence that people read, None where it waits for nothing."""
    _write(connection, name, doing, waits_for, detail, {})


def _write(
    connection: Connection,
    name: str,
    doing: str,
    waits_for: str | None,
    detail: Mapping[str, Any] | None,
    more: Mapping[str, Any],
) -> None:
    row = {"doing": doing, "waits_for": waits_for, "detail": detail, "beat_at": func.now(), **more}
    upsert = insert(processes).values(name=name, **row)
    connection.execute(upsert.on_conflict_do_update(index_elements=[processes.c.name], set_=row))
