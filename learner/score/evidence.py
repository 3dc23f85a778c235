"""Evidence that needs no judge: feedback, and what lineage shows. Applied before anything is judged.

A turn that feedback has scored goes to `scored`, whether or not anything followed it. Where a turn is in a
batch or trained already, only its score is written: for calibration, and for a person's eyes.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

from sqlalchemy import Connection, Engine

from dukou.store import feedback, scores, states
from dukou.store import hints as stored_hints
from dukou.store.feedback import Opinion
from dukou.store.scores import FEEDBACK, Score
from learner.hints.lessons import Lesson, Lessons
from learner.score.forks import TURNS_PER_TRANSACTION, Forks
from learner.score.reward import correction, hints, reward

FORKS_SECONDS = 60.0  # between looks for answers that the user had made again, or wrote anew

#: The judge and the rubric of these scores; a changed rule is a new version.
BY_FEEDBACK = ("feedback", "feedback@1")


class Evidence:
    def __init__(self, engine: Engine, lessons: Lessons, now: Callable[[], float]) -> None:
        """`now` is any clock that only grows, in seconds."""
        self._engine, self._lessons, self._now = engine, lessons, now
        self._forks = Forks(engine)
        self._forks_at: float | None = None

    def apply(self) -> int:
        """Scores turns by the feedback that has come, and by what lineage shows; how many.

        Raises:
            sqlalchemy.exc.DBAPIError: the database is not there; nothing of the open transaction stays.
        """
        with self._engine.begin() as connection:
            feedback.find_turns(connection)
        done = self._apply_feedback()
        if self._forks_at is None or self._now() - self._forks_at >= FORKS_SECONDS:
            self._forks_at = self._now()
            done += self._forks.apply(datetime.now(UTC))
        return done

    def _apply_feedback(self) -> int:
        done = 0
        while True:
            with self._engine.begin() as connection:
                waiting = feedback.unapplied(connection, TURNS_PER_TRANSACTION)
                said = {turn_id: feedback.opinions(connection, turn_id) for turn_id in waiting}
                _score(connection, said)
            done += len(said)
            self._teach(said)
            if len(said) < TURNS_PER_TRANSACTION:
                return done

    def _teach(self, said: dict[UUID, list[Opinion]]) -> None:
        """People's own words are hints. A turn that is in a batch by now learns nothing from them."""
        lessons = [self._lessons.of_texts(turn_id, hints(opinions)) for turn_id, opinions in said.items()]
        if any(lesson != Lesson(lesson.turn_id) for lesson in lessons):
            with self._engine.begin() as connection:
                for lesson in lessons:
                    lesson.write(connection)


def _score(connection: Connection, said: dict[UUID, list[Opinion]]) -> None:
    scored = []
    for turn_id, opinions in said.items():
        value, corrected = reward(opinions), correction(opinions)
        if value is not None:
            score = Score(value, FEEDBACK)
            scores.record(connection, turn_id, *BY_FEEDBACK, score, injection_suspected=False)
            scored.append(turn_id)
        if corrected is not None:
            stored_hints.record_demonstration(connection, turn_id, "feedback", corrected)
    states.rescue(connection, scored)
    feedback.mark_applied(connection, list(said))
