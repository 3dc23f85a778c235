"""Turns, written once by the drainer together with their states."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Uuid, text

from dukou.store import bases, binary, contents, layout, partitions
from dukou.store.contents import Content
from dukou.store.states import Stage
from dukou.store.tables import turn_states, turns
from dukou.store.turn_rows import Place, TurnRow

# Those of the ids that are turns already.
_RECORDED = text("""
    select id from turns where id = any(cast(:ids as uuid[]))
""").columns(id=Uuid)
# Makes turns scorable whose next state came, also after they were dropped for lack of one.
_FOLLOWED = text("""
    update turn_states s
    set stage = 'scorable', reason = null, next_turn_id = pair.next_id, changed_at = now()
    from unnest(cast(:turns as uuid[]), cast(:nexts as uuid[])) as pair (turn_id, next_id)
    where s.turn_id = pair.turn_id
      and (s.stage = 'awaiting_next' or (s.stage = 'dropped' and s.reason = 'no_next_state'))
""")
# Drops turns that were retried and are in no batch, and keeps them out of training.
_ABANDON = text("""
    with dropped as (
        update turn_states set stage = 'dropped', reason = 'retry', changed_at = now()
        where turn_id = any(cast(:ids as uuid[])) and stage in ('awaiting_next', 'scorable', 'scored')
        returning turn_id
    )
    update turns t set trainable = false, untrainable_reason = 'retry'
    from dropped
    where t.id = dropped.turn_id and t.trainable
""")


def recorded(connection: Connection, ids: Sequence[UUID]) -> set[UUID]:
    """Those of the ids that are turns already: records may be read twice."""
    return set(connection.scalars(_RECORDED, {"ids": binary.uuids(ids)}))


def insert_turns(connection: Connection, rows: Sequence[tuple[TurnRow, Place]]) -> None:
    """Writes turns, each as what it adds to its base, and their states.

    Args:
        rows: not there yet (`recorded`); a turn comes after those that it begins with.
    """
    if not rows:
        return
    values, new = _stored(connection, rows)
    contents.keep(connection, new)
    binary.copy_rows(connection, turns, values)
    states = [
        {
            "turn_id": row["id"],
            "tenant": row["tenant"],
            "policy_id": row["policy_id"],
            "reason": (reason := row["untrainable_reason"]),
            "stage": Stage.AWAITING_NEXT if reason is None else Stage.DROPPED,
        }
        for row in values
    ]
    binary.copy_rows(connection, turn_states, states)


def followed(connection: Connection, pairs: Mapping[UUID, UUID]) -> None:
    """Makes turns scorable whose next state has come; `pairs` is turn id → the turn that brought it.

    Also a turn whose session had ended without one: the user came back. Whatever else became of it stays.
    """
    if not pairs:
        return
    connection.execute(_FOLLOWED, {"turns": binary.uuids(pairs), "nexts": binary.uuids(pairs.values())})


def abandon(connection: Connection, ids: Sequence[UUID]) -> None:
    """Takes attempts that the client repeated out of training, unless a batch has them already."""
    if not ids:
        return
    connection.execute(_ABANDON, {"ids": binary.uuids(ids)})


def _stored(
    connection: Connection, rows: Sequence[tuple[TurnRow, Place]]
) -> tuple[list[dict[str, Any]], list[Content]]:
    """The rows as they are stored, and the contents that they point to."""
    periods = partitions.periods(connection)
    here = {what.id for what, _ in rows}
    known = bases.find(connection, [one for row in rows for one in _begins_with(*row) if one not in here])
    values: list[dict[str, Any]] = []
    new: list[Content] = []
    for what, where in rows:
        period = partitions.period_of(what.id, periods)
        near = [known[one] for one in _begins_with(what, where) if one in known]
        parent = known.get(where.parent_id) if where.parent_id is not None else None
        stored = layout.lay(what, period, near, parent)
        known[what.id] = stored.base
        new += stored.contents
        values.append(_values(what, where) | stored.columns)
    return values, new


def _begins_with(what: TurnRow, where: Place) -> list[UUID]:
    """The turns that this one may begin with."""
    sibling = what.request_id if what.request_id != what.id else None
    return [one for one in (sibling, where.parent_id, where.retry_of) if one is not None]


_ROW = tuple(field.name for field in fields(TurnRow) if field.name != "body")
_PLACE = tuple(field.name for field in fields(Place))


def _values(what: TurnRow, where: Place) -> dict[str, Any]:
    row = {name: getattr(what, name) for name in _ROW}
    row.update({name: getattr(where, name) for name in _PLACE})
    row["trainable"] = what.untrainable_reason is None
    return row
