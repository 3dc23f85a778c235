"""Evidence that lineage shows: answers that the user had made again, or wrote anew. Thin: what counts is said
by `dukou/store/siblings.py` and `learner/score/edits.py`.

Only turns that ended without a next state and have no score: what a judge says of one later is newer, and
counts. A question that the user edited says as much of the question as of the answer: it is no evidence.
"""

from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, Engine

from dukou.store import hints, scores, siblings, states
from dukou.store.scores import EDITED, REGENERATED, Score
from learner.score.edits import corrected

TURNS_PER_TRANSACTION = 200  # turns in one transaction
LOOKBACK = timedelta(days=2)  # older turns are left as they are
OVERLAP = timedelta(minutes=10)  # between two looks: clocks differ, and sessions are closed in transactions

#: The judges and the rubrics of these scores; a changed rule is a new version.
BY_SIBLINGS = ("siblings", "siblings@2")
BY_EDITS = ("edits", "edits@2")


class Forks:
    """Looks again and again, each time at the sessions that have ended since."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looked: datetime | None = None

    def apply(self, now: datetime) -> int:
        """How many turns were scored."""
        ended = now - LOOKBACK if self._looked is None else self._looked - OVERLAP
        done = apply_siblings(self._engine, now - LOOKBACK) + apply_edits(self._engine, now - LOOKBACK, ended)
        self._looked = now
        return done


def apply_siblings(engine: Engine, since: datetime) -> int:
    """Scores the answers that the user had made again, of turns since then; how many."""
    with engine.begin() as connection:
        found = siblings.abandoned(connection, since, TURNS_PER_TRANSACTION)
        for turn_id in found:
            _fell_short(connection, turn_id, BY_SIBLINGS, REGENERATED)
    return len(found)


def apply_edits(engine: Engine, since: datetime, ended: datetime) -> int:
    """Scores the answers that the user wrote anew, and keeps what they wrote as demonstrations; how many.

    Of turns since then, in sessions that ended after `ended`.
    """
    with engine.connect() as connection:
        forked = siblings.forked(connection, since, ended)
    done: set[UUID] = set()
    for turn_id, beside in forked:
        if turn_id not in done and _apply_edit(engine, turn_id, beside):
            done.add(turn_id)
    return len(done)


def _apply_edit(engine: Engine, turn_id: UUID, beside: UUID) -> bool:
    with engine.begin() as connection:
        fork = siblings.read(connection, turn_id, beside)
        answer = None if fork is None else corrected(fork.messages, fork.answer, fork.later)
        if answer is None:
            return False
        hints.record_demonstration(connection, turn_id, "edit", answer)
        _fell_short(connection, turn_id, BY_EDITS, EDITED)
    return True


def _fell_short(connection: Connection, turn_id: UUID, by: tuple[str, str], because: str) -> None:
    scores.record(connection, turn_id, *by, Score(-1.0, because), injection_suspected=False)
    states.rescue(connection, [turn_id])
