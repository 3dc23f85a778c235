"""Several hints of one turn: the trainer's own forward pass says which of them teaches."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from sqlalchemy import text

from dukou.store import hints
from dukou.store.hints import NewHint
from dukou.store.processes import LeaseLostError
from learner.batch.close import ClosedBatch, close_batch
from learner.train import hints as choosing
from learner.train.trainer import Trainer
from tests.fakes.training import config, fill, make_policy, rows
from tests.fakes.turns import turn_id

PROMPT = np.array([9, 8, 7, 6], np.int32)
TOLD = "select text from hints join samples on hint_id = hints.id"


def lesson(db, number, *new):
    with db.begin() as connection:
        hints.record(connection, turn_id(number), [NewHint(words, ids) for words, ids in new])


@pytest.fixture
def settings(db, tmp_path):
    made = config(tmp_path, loss={"mode": "combine"}, trainer={"max_tokens": 24})
    fill(db, make_policy(db, made), range(4), prompt_ids=PROMPT)
    return made


def close(db, settings):
    outcome = close_batch(db, settings, datetime.now(UTC) + timedelta(seconds=5))
    assert isinstance(outcome, ClosedBatch)
    return outcome.batch_id


def moving(seed):
    """A prompt of the same length that is another one altogether."""
    return np.random.default_rng(seed).integers(0, 512, len(PROMPT)).astype(np.int32)


def test_the_hint_that_moves_the_answer_most_teaches_it_whatever_its_length(db, settings):
    lesson(db, 1, ("moves", moving(1)), ("a long one that changes nothing", PROMPT))
    lesson(db, 2, ("changes nothing", PROMPT), ("moves it as well", moving(2)))
    lesson(db, 3, ("alone", PROMPT))
    batch_id = close(db, settings)
    before = [told for (told,) in rows(db, f"{TOLD} order by position")]
    assert before == ["a long one that changes nothing", "moves it as well", "alone"]
    report = Trainer(db, settings).step(batch_id)
    assert [told for (told,) in rows(db, f"{TOLD} order by position")] == [
        "moves",
        "moves it as well",
        "alone",
    ]
    assert report.metrics["teacher/kl"] != 0.0


def test_a_replay_chooses_the_same_hint_and_an_earlier_or_a_later_lesson_takes_no_part(db, settings):
    lesson(db, 1, ("an earlier lesson", moving(5)))
    lesson(db, 1, ("moves", moving(1)), ("a long one that changes nothing", PROMPT))
    batch_id = close(db, settings)
    lesson(db, 1, ("a later lesson", moving(6)))
    trainer = Trainer(db, settings)
    seen = []
    for _ in range(2):
        work = trainer.step_store.read(batch_id, settings)
        assert [len(of) for of in work.alternatives.values()] == [2]
        token = trainer.step_store.acquire()
        told = choosing.choose_hints(trainer.step_store, token, trainer._at(work).weights, work)
        seen.append(
            (rows(db, TOLD), [s.hinted_prompt.tolist() for s in told.samples if s.hinted_prompt is not None])
        )
    assert seen == [([("moves",)], [moving(1).tolist()])] * 2


def test_a_hint_that_would_be_too_long_to_train_is_no_rival(db, settings):
    long = np.random.default_rng(1).integers(0, 512, 24).astype(np.int32)
    lesson(db, 1, ("too long to train", long), ("short", PROMPT))
    batch_id = close(db, settings)
    assert Trainer(db, settings).step_store.read(batch_id, settings).alternatives == {}


def test_a_trainer_that_lost_its_lease_chooses_nothing(db, settings):
    lesson(db, 1, ("moves", moving(1)), ("a long one that changes nothing", PROMPT))
    batch_id = close(db, settings)
    trainer = Trainer(db, settings)
    work = trainer.step_store.read(batch_id, settings)
    old = trainer.step_store.acquire()
    trainer.step_store.acquire()
    with pytest.raises(LeaseLostError):
        choosing.choose_hints(trainer.step_store, old, trainer._at(work).weights, work)
    assert rows(db, TOLD) == [("a long one that changes nothing",)]


def test_there_is_one_lesson_a_transaction(db, settings):
    """What tells rivals from earlier hints."""
    lesson(db, 1, ("one", PROMPT), ("two", PROMPT))
    lesson(db, 1, ("three", PROMPT))
    with db.connect() as connection:
        times = connection.execute(text("select created_at from hints order by id")).scalars().all()
    assert times[0] == times[1] != times[2]
