"""Engines as their reconciler last saw them: one row a URL."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import insert

from store.tables import engines

State = Literal["ready", "starting", "paused", "updating", "dead"]


@dataclass(frozen=True, slots=True)
class EngineRow:
    url: str
    state: State
    reason: str | None
    version: int | None  # what it serves, as verified; None: unknown
    dialect: str | None  # sglang | vllm | plain; None: it never answered
    beside: list[str]  # adapters that some sessions get instead of the version
    seen_at: datetime


def record(
    connection: Connection,
    url: str,
    state: State,
    *,
    reason: str | None,
    version: int | None,
    dialect: str | None,
    beside: Iterable[str] = (),
) -> None:
    """Writes what is known of an engine now."""
    values = {
        "state": state,
        "reason": reason,
        "version": version,
        "dialect": dialect,
        "beside": sorted(beside),
        "seen_at": func.now(),
    }
    statement = insert(engines).values(url=url, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=[engines.c.url], set_=values))


def get_all(connection: Connection) -> list[EngineRow]:
    rows = connection.execute(select(engines).order_by(engines.c.url)).mappings()
    return [EngineRow(**row) for row in rows]
