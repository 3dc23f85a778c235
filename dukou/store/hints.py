"""Hints: how an answer should have been, and the prompt that says so, as the trainer's teacher reads it.

Demonstrations: corrected answers, for export and SFT. A newer one of a source replaces the old.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, func, select, update
from sqlalchemy.dialects.postgresql import insert

from dukou.store import contents
from dukou.store.tables import demonstrations, hints, samples, turns


@dataclass(frozen=True, slots=True)
class NewHint:
    text: str
    prompt_ids: npt.NDArray[np.int32]  # the turn's prompt with the hint in it


@dataclass(frozen=True, slots=True)
class AlternativeHint:
    """One of several hints that were written together: only one can teach its turn."""

    hint_id: int
    prompt_ids: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class HintTarget:
    """The turn that a hint is for: what its prompt is rendered from, and the ids that it must come to without
    the hint."""

    messages: list[object]
    tools: list[object] | None
    sampling: dict[str, object]
    prompt_ids: npt.NDArray[np.int32] | None
    response_ids: npt.NDArray[np.int32] | None
    response_text: str | None
    trained_tokens: npt.NDArray[np.int32] | None  # spans (dukou/store/layout.py); None: the whole answer


def read_target(connection: Connection, turn_id: UUID) -> HintTarget | None:
    """Reads the turn that a hint is for; None where it is gone."""
    query = select(
        contents.messages(turns),
        contents.tools(turns),
        turns.c.sampling,
        contents.prompt_ids(turns),
        turns.c.response_ids,
        turns.c.response_text,
        turns.c.trained_tokens,
    )
    row = connection.execute(query.where(turns.c.id == turn_id)).one_or_none()
    return None if row is None else HintTarget(row[0] or [], row[1], row[2] or {}, *row[3:])


def record(connection: Connection, turn_id: UUID, new: Sequence[NewHint]) -> None:
    """Adds hints to a turn, the longest last. Those of one transaction are alternatives; the newest count."""
    for hint in new:
        values = {"turn_id": turn_id, "text": hint.text, "prompt_ids": hint.prompt_ids}
        connection.execute(hints.insert().values(**values))


def alternatives(connection: Connection, batch_id: int, longest: int) -> dict[UUID, list[AlternativeHint]]:
    """The hints that were written together with a sample's own, in order, of turns that have several.

    `longest`: tokens of prompt and answer, beyond which a hint could not be trained.
    """
    own = hints.alias("own")
    tokens = func.cardinality(hints.c.prompt_ids) + func.cardinality(turns.c.response_ids)
    query = (
        select(samples.c.turn_id, hints.c.id, hints.c.prompt_ids)
        .join(own, own.c.id == samples.c.hint_id)
        .join(hints, (hints.c.turn_id == own.c.turn_id) & (hints.c.created_at == own.c.created_at))
        .join(turns, turns.c.id == samples.c.turn_id)
        .where(samples.c.batch_id == batch_id, tokens <= longest)
        .order_by(samples.c.position, hints.c.id)
    )
    found: dict[UUID, list[AlternativeHint]] = {}
    for turn_id, hint_id, prompt_ids in connection.execute(query):
        found.setdefault(turn_id, []).append(AlternativeHint(hint_id, prompt_ids))
    return {turn_id: several for turn_id, several in found.items() if len(several) > 1}


def use(connection: Connection, batch_id: int, chosen: Mapping[UUID, int]) -> None:
    """From now on these hints teach these turns of the batch."""
    for turn_id, hint_id in chosen.items():
        of_turn = (samples.c.batch_id == batch_id) & (samples.c.turn_id == turn_id)
        connection.execute(update(samples).where(of_turn).values(hint_id=hint_id))


def record_demonstration(
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
