"""Votes: one answer of a judge about a turn, or the reason why there is none."""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import insert

from store.tables import votes

OK = "ok"
ABSTAINED = "abstained"


@dataclass(frozen=True, slots=True)
class Vote:
    n: int  # which of the m votes, from 0
    status: str  # ok | abstained | timeout | unreachable | http_500 | unparsable | empty | truncated | …
    value: int | None = None  # -1, 0, 1; None unless status is ok
    hint: str | None = None  # how the answer should have been, in hindsight
    raw: str | None = None  # the judge's own words

    @property
    def came_back(self) -> bool:
        """The judge answered, even if only that it cannot tell: there is nothing to ask again."""
        return self.status in (OK, ABSTAINED)


def came_back(connection: Connection, turn_id: UUID, judge: str, rubric: str) -> list[Vote]:
    """The votes that need not be paid for again, in order."""
    columns = votes.c
    statement = (
        select(columns.n, columns.status, columns.value, columns.hint, columns.raw)
        .where(columns.turn_id == turn_id, columns.judge == judge, columns.rubric == rubric)
        .where(columns.status.in_((OK, ABSTAINED)))
        .order_by(columns.n)
    )
    return [Vote(*row) for row in connection.execute(statement)]


def record(
    connection: Connection, turn_id: UUID, judge: str, rubric: str, vote: Vote, call_id: int | None
) -> None:
    """Writes a vote; it takes the place of an earlier failure, never of a vote that came back."""
    facts = {
        "status": vote.status,
        "value": vote.value,
        "hint": vote.hint,
        "raw": vote.raw,
        "call_id": call_id,
    }
    statement = insert(votes).values(turn_id=turn_id, judge=judge, rubric=rubric, n=vote.n, **facts)
    statement = statement.on_conflict_do_update(
        index_elements=["turn_id", "judge", "rubric", "n"],
        set_={**facts, "created_at": func.now()},
        where=votes.c.status.not_in((OK, ABSTAINED)),
    )
    connection.execute(statement)
