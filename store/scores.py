"""Scores: what the votes about a turn come to; and the reading of what is to be judged."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import insert

from store.tables import scores, turns


@dataclass(frozen=True, slots=True)
class Score:
    value: float | None  # in [-1, 1]; None with a reason
    reason: str  # majority | tie | no_quorum | abstained | …
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """A turn and the request that followed it, as recorded."""

    messages: list[Any]
    response_text: str | None
    reasoning_text: str | None
    tool_calls: list[Any]
    next_messages: list[Any]  # the following request's messages, in full
    parent_messages: int | None  # how many of them are this turn's history and answer


def read_judged(connection: Connection, turn_id: UUID, next_turn_id: UUID) -> Judged | None:
    """What the judge needs to see; None where either turn is gone (forgotten meanwhile)."""
    child = turns.alias("child")
    both = turns.join(child, child.c.id == next_turn_id)
    statement = select(
        turns.c.messages,
        turns.c.response_text,
        turns.c.reasoning_text,
        turns.c.tool_calls,
        child.c.messages,
        child.c.parent_messages,
    )
    statement = statement.select_from(both).where(turns.c.id == turn_id)
    row = connection.execute(statement).one_or_none()
    if row is None:
        return None
    messages, text, reasoning, tool_calls, next_messages, parent_messages = row
    return Judged(messages or [], text, reasoning, tool_calls or [], next_messages or [], parent_messages)


def record(
    connection: Connection, turn_id: UUID, judge: str, rubric: str, score: Score, *, injection_suspected: bool
) -> None:
    """Writes the score, in the place of an earlier one of this judge and rubric."""
    facts = {
        "value": score.value,
        "reason": score.reason,
        "hint": score.hint,
        "injection_suspected": injection_suspected,
    }
    statement = insert(scores).values(turn_id=turn_id, judge=judge, rubric=rubric, **facts)
    statement = statement.on_conflict_do_update(
        index_elements=["turn_id", "judge", "rubric"], set_={**facts, "created_at": func.now()}
    )
    connection.execute(statement)
