"""Turns, written once by the drainer together with their states."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, Uuid, text

from store import bases, contents, copying, layout, partitions, wire
from store.body import Body
from store.contents import Content
from store.layout import Facts
from store.stages import Stage
from store.tables import turn_states, turns

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """What happened, as a row of `turns` has it. None is unknown; why is in `untrainable_reason`."""

    id: UUID
    request_id: UUID  # the id of choice 0
    choice_index: int
    tenant: str
    key_id: str | None
    user_name: str | None
    policy_id: int | None
    policy_version_min: int | None
    policy_version_max: int | None
    kind: str
    kind_reason: str | None
    endpoint: str
    stream: bool
    model: str | None
    engine: str | None
    status: str
    error: str | None
    http_status: int | None
    body: Body
    sampling: Any
    sampling_defaults: Any = None
    response_text: str | None
    reasoning_text: str | None
    tool_calls: Any
    finish_reason: str | None
    matched_stop: str | None
    stopped_by: str | int | None = None  # the same with its type
    usage: Any
    prompt_ids: npt.NDArray[np.int32] | None
    response_ids: npt.NDArray[np.int32] | None
    response_logprobs: npt.NDArray[np.float32] | None  # nats; NaN: missing
    trained_tokens: npt.NDArray[np.int32] | None = None  # begins and ends by turns; None: all
    capture: str
    sampling_class: str | None
    temperature: float | None
    untrainable_reason: str | None
    text_altered: bool
    history_hash: bytes | None
    prompt_hash: bytes | None
    exchange_hash: bytes | None
    client_request_id: str | None
    started_at: datetime
    first_token_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a turn belongs: the part of its row that lineage decides."""

    session_id: str
    session_source: str
    segment_id: UUID
    parent_id: UUID | None = None
    parent_messages: int | None = None
    retry_of: UUID | None = None
    ordinal: int = 0

    def at(self, ordinal: int, segment_id: UUID) -> "Place":
        """The same place, counted."""
        return Place(
            session_id=self.session_id,
            session_source=self.session_source,
            segment_id=segment_id,
            parent_id=self.parent_id,
            parent_messages=self.parent_messages,
            retry_of=self.retry_of,
            ordinal=ordinal,
        )


def recorded(connection: Connection, ids: Sequence[UUID]) -> set[UUID]:
    """Those of the ids that are turns already: records may be read twice."""
    return set(connection.scalars(_RECORDED, {"ids": wire.uuids(ids)}))


def insert_turns(connection: Connection, rows: Sequence[tuple[TurnRow, Place]]) -> None:
    """Writes turns, each as what it adds to its base, and their states.

    Args:
        rows: not there yet (`recorded`); a turn comes after those that it begins with.
    """
    if not rows:
        return
    values, kept = _stored(connection, rows)
    contents.keep(connection, kept)
    copying.copy_rows(connection, turns, values)
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
    copying.copy_rows(connection, turn_states, states)


def followed(connection: Connection, pairs: Mapping[UUID, UUID]) -> None:
    """Makes turns scorable whose next state has come; `pairs` is turn id → the turn that brought it.

    Also a turn whose session had ended without one: the user came back. Whatever else became of it stays.
    """
    if not pairs:
        return
    connection.execute(_FOLLOWED, {"turns": wire.uuids(pairs), "nexts": wire.uuids(pairs.values())})


def abandon(connection: Connection, ids: Sequence[UUID]) -> None:
    """Takes attempts that the client repeated out of training, unless a batch has them already."""
    if not ids:
        return
    connection.execute(_ABANDON, {"ids": wire.uuids(ids)})


def _stored(
    connection: Connection, rows: Sequence[tuple[TurnRow, Place]]
) -> tuple[list[dict[str, Any]], list[Content]]:
    """The rows as they are stored, and the contents that they point to."""
    periods = partitions.periods(connection)
    here = {what.id for what, _ in rows}
    known = bases.find(connection, [one for row in rows for one in _begins_with(*row) if one not in here])
    values: list[dict[str, Any]] = []
    kept: list[Content] = []
    for what, where in rows:
        period = partitions.period_of(what.id, periods)
        facts = Facts(
            what.id, what.tenant, period, what.body, what.prompt_ids, what.response_ids, what.response_text
        )
        near = [known[one] for one in _begins_with(what, where) if one in known]
        stored = layout.lay(facts, near, known.get(where.parent_id) if where.parent_id is not None else None)
        known[what.id] = stored.base
        kept += stored.contents
        values.append(_values(what, where) | stored.columns)
    return values, kept


def _begins_with(what: TurnRow, where: Place) -> list[UUID]:
    """The turns that this one may begin with."""
    sibling = what.request_id if what.request_id != what.id else None
    return [one for one in (sibling, where.parent_id, where.retry_of) if one is not None]


_FACTS = tuple(field.name for field in fields(TurnRow) if field.name != "body")
_PLACE = tuple(field.name for field in fields(Place))


def _values(what: TurnRow, where: Place) -> dict[str, Any]:
    row = {name: getattr(what, name) for name in _FACTS}
    row.update({name: getattr(where, name) for name in _PLACE})
    row["trainable"] = what.untrainable_reason is None
    return row
