"""Windows of time over turns: their ids are UUIDv7, so a moment is an id, and the key an index on time."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

# Main turns of a window that may be trained and were followed, each with the turn that followed it.
_JUDGEABLE = text("""
    select s.turn_id, next.id
    from turn_states s
    join turns t on t.id = s.turn_id and t.kind = 'main' and t.trainable
    cross join lateral (
        select coalesce(s.next_turn_id, (
            select c.id from turns c where c.parent_id = s.turn_id and c.kind = 'main' order by c.id limit 1
        )) as id
    ) as next
    where s.turn_id >= :first and s.turn_id < :last and next.id is not null
      and s.reason is distinct from 'sampling_truncated'
    order by s.turn_id
    limit :limit
""")
# The scores of a window's turns: from whom, the value, and the tokens of the answer.
_GIVEN_SCORES = text("""
    select sc.turn_id,
           case when sc.reason = 'feedback' then 'feedback' else sc.judge || ' ' || sc.rubric end, sc.value,
           cardinality(t.response_ids)
    from scores sc
    join turns t on t.id = sc.turn_id
    where sc.turn_id >= :first and sc.turn_id < :last and sc.value is not null
    order by sc.turn_id
""")


@dataclass(frozen=True, slots=True)
class Window:
    """From `since` on, up to and without `until`; None is open."""

    since: datetime | None = None
    until: datetime | None = None

    @property
    def ids(self) -> dict[str, UUID]:
        """The first id in it and the first behind it."""
        last = UUID(int=(1 << 128) - 1)
        first = UUID(int=0) if self.since is None else first_id(self.since)
        return {"first": first, "last": last if self.until is None else first_id(self.until)}


def first_id(moment: datetime) -> UUID:
    """The least id that a turn of this moment can have."""
    return UUID(int=max(0, int(moment.timestamp() * 1000)) << 80)


def judgeable(
    connection: Connection, window: Window, after: UUID | None, limit: int
) -> list[tuple[UUID, UUID]]:
    """(turn, the turn that followed it) of main turns that may be trained and were followed, in order.

    Without those that the learner left out unjudged, by how they were sampled.
    """
    given = window.ids
    if after is not None:
        given["first"] = UUID(int=after.int + 1)
    return [(row[0], row[1]) for row in connection.execute(_JUDGEABLE, given | {"limit": limit})]


class GivenScore(NamedTuple):
    """A score that is not NULL."""

    turn_id: UUID
    side: str  # who gave it: "feedback", or judge and rubric
    value: float
    tokens: int | None  # of the answer; None where they are not known


def given_scores(connection: Connection, window: Window) -> list[GivenScore]:
    """Every score of the window's turns that is not NULL, in order of the turns."""
    return [GivenScore(*row) for row in connection.execute(_GIVEN_SCORES, window.ids)]
