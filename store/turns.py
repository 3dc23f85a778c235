"""Turns, written once by the drainer together with their states."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
from sqlalchemy import BindParameter, Connection, bindparam, func, select, text, update
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.sql import any_
from sqlalchemy.types import Uuid

from store.stages import Stage
from store.tables import set_aside, turn_states, turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
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
    request_body: bytes
    messages: Any
    tools: Any
    sampling: Any
    response_text: str | None
    reasoning_text: str | None
    tool_calls: Any
    finish_reason: str | None
    matched_stop: str | None
    usage: Any
    prompt_ids: npt.NDArray[np.int32] | None
    response_ids: npt.NDArray[np.int32] | None
    response_logprobs: npt.NDArray[np.float32] | None  # nats; NaN: missing
    capture: str
    sampling_class: str | None
    temperature: float | None
    untrainable_reason: str | None
    text_altered: bool
    history_hash: bytes | None
    prompt_hash: bytes | None
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


def recorded(connection: Connection, ids: Sequence[UUID]) -> set[UUID]:
    """Those of the ids that are turns already: records may be read twice."""
    query = select(turns.c.id).where(turns.c.id == any_(_uuids(ids)))
    return set(connection.scalars(query))


def insert_turns(
    connection: Connection, rows: Iterable[tuple[Recorded, Place]], born_dropped: Mapping[UUID, str]
) -> None:
    """Writes turns and their states; what is there already stays as it is.

    Args:
        born_dropped: turn id → why its state begins as dropped, beside those that cannot be trained.
    """
    values = [_values(what, where) for what, where in rows]
    if not values:
        return
    connection.execute(insert(turns).on_conflict_do_nothing(), values)
    states = [
        {
            "turn_id": row["id"],
            "tenant": row["tenant"],
            "policy_id": row["policy_id"],
            "reason": (reason := row["untrainable_reason"] or born_dropped.get(row["id"])),
            "stage": Stage.AWAITING_NEXT if reason is None else Stage.DROPPED,
        }
        for row in values
    ]
    connection.execute(insert(turn_states).on_conflict_do_nothing(), states)


def followed(connection: Connection, pairs: Mapping[UUID, UUID]) -> None:
    """Makes turns scorable whose next state has come; `pairs` is turn id → the turn that brought it.

    Also a turn whose session had ended without one: the user came back. Whatever else became of it stays.
    """
    if not pairs:
        return
    statement = text(
        "update turn_states s"
        " set stage = 'scorable', reason = null, next_turn_id = pair.next_id, changed_at = now()"
        " from unnest(cast(:turns as uuid[]), cast(:nexts as uuid[])) as pair (turn_id, next_id)"
        " where s.turn_id = pair.turn_id"
        " and (s.stage = 'awaiting_next' or (s.stage = 'dropped' and s.reason = 'no_next_state'))"
    ).bindparams(bindparam("turns", type_=ARRAY(Uuid())), bindparam("nexts", type_=ARRAY(Uuid())))
    connection.execute(statement, {"turns": list(pairs), "nexts": list(pairs.values())})


def abandon(connection: Connection, ids: Sequence[UUID]) -> None:
    """Takes attempts that the client repeated out of training, unless a batch has them already."""
    if not ids:
        return
    open_stages = (Stage.AWAITING_NEXT, Stage.SCORABLE, Stage.SCORED)
    moved = (
        update(turn_states)
        .where(turn_states.c.turn_id == any_(_uuids(ids)), turn_states.c.stage.in_(open_stages))
        .values(stage=Stage.DROPPED, reason="retry", changed_at=func.now())
        .returning(turn_states.c.turn_id)
    )
    dropped = list(connection.scalars(moved))
    connection.execute(
        update(turns)
        .where(turns.c.id == any_(_uuids(dropped)), turns.c.trainable)
        .values(trainable=False, untrainable_reason="retry")
    )


def put_aside(connection: Connection, turn_id: UUID, error: str, record: bytes) -> None:
    """Keeps the spool records of a turn that cannot become a row, with the reason."""
    statement = insert(set_aside).on_conflict_do_nothing()
    connection.execute(statement, {"id": turn_id, "error": error, "record": record})


_RECORDED = tuple(field.name for field in fields(Recorded))
_PLACE = tuple(field.name for field in fields(Place))


def _values(what: Recorded, where: Place) -> dict[str, Any]:
    row = {name: getattr(what, name) for name in _RECORDED}
    row.update({name: getattr(where, name) for name in _PLACE})
    row["trainable"] = what.untrainable_reason is None
    return row


def _uuids(ids: Sequence[UUID]) -> BindParameter[Any]:
    return bindparam(None, list(ids), type_=ARRAY(Uuid()))
