"""Hints: how an answer should have been, and the prompt that says so, as the trainer's teacher reads it."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, select

from store import whole
from store.tables import hints, turns


@dataclass(frozen=True, slots=True)
class NewHint:
    text: str
    prompt_ids: npt.NDArray[np.int32]  # the turn's prompt with the hint in it


@dataclass(frozen=True, slots=True)
class Taught:
    """What a prompt is rendered from again, and what it must come to without a hint."""

    messages: list[object]
    tools: list[object] | None
    sampling: dict[str, object]
    prompt_ids: npt.NDArray[np.int32] | None
    response_ids: npt.NDArray[np.int32] | None
    response_text: str | None


def read_taught(connection: Connection, turn_id: UUID) -> Taught | None:
    """None where the turn is gone."""
    query = select(
        whole.messages(turns),
        whole.tools(turns),
        turns.c.sampling,
        whole.prompt_ids(turns),
        turns.c.response_ids,
        turns.c.response_text,
    )
    row = connection.execute(query.where(turns.c.id == turn_id)).one_or_none()
    return None if row is None else Taught(row[0] or [], row[1], row[2] or {}, *row[3:])


def record(connection: Connection, turn_id: UUID, new: Sequence[NewHint]) -> None:
    """Adds hints to a turn, the most informative last: the newest is the one that counts."""
    for hint in new:
        values = {"turn_id": turn_id, "text": hint.text, "prompt_ids": hint.prompt_ids}
        connection.execute(hints.insert().values(**values))
