"""Writes a template's hint for every question as soon as its turn is recorded, through learner.hints."""

import threading

from sqlalchemy import Engine, text

from bench.evidence.modes import HINTS
from dukou.local.demo import wish
from dukou.settings.model import Config
from learner.hints.lessons import Lessons

POLL_SECONDS = 0.1

#: Questions of the crowd whose turn has no hint and is in no batch yet.
UNHINTED = text("""
    select turn.id, turn.messages->-1->>'content' as question
    from turn_states join turn on turn.id = turn_states.turn_id
    where turn_states.stage in ('awaiting_next', 'scorable', 'scored')
      and turn.ordinal = 0 and not exists (select from hints where hints.turn_id = turn.id)
""")


class Hinting:
    """A thread that writes hints until it is stopped."""

    def __init__(self, engine: Engine, config: Config) -> None:
        self._engine = engine
        self._lessons = Lessons(engine, config)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(POLL_SECONDS):
            with self._engine.connect() as connection:
                rows = connection.execute(UNHINTED).all()
            for turn_id, question in rows:
                topic = wish.topic_of(question)
                if topic is None:
                    continue
                hint = HINTS[turn_id.int % len(HINTS)].format(topic=topic)
                lesson = self._lessons.of_texts(turn_id, [hint])
                with self._engine.begin() as connection:
                    lesson.write(connection)
