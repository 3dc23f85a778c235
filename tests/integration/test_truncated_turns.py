"""Answers sampled with top-p, from the spool to a batch: trained by choice, and judged only then."""

import pytest

from dukou.settings.learning import JudgeSettings
from dukou.store.sessions import Window
from learner.batch.close import ClosedBatch, NoBatch, close_batch
from learner.score.history import History
from learner.score.judge import RulesJudge
from learner.score.scorer import Scorer
from tests.fakes.ferry import Ferry
from tests.fakes.spooled import assistant, reply_body, reply_meta, request_body, request_meta, turn_id, user
from tests.fakes.training import NOW, config, fill, make_policy, rows

REASONS = "select stage, reason, count(*) from turn_states group by 1, 2 order by 1, 2"


def made(tmp_path, db, truncated):
    settings = config(tmp_path, batch={"truncated": truncated}, judge=JudgeSettings(kind="rules"))
    return settings, make_policy(db, settings)


def record(ferry, number, **sampling):
    """A conversation whose user thanks for the answer, sampled like this."""
    asked = [user(f"What is {number}?")]
    for messages in (asked, [*asked, assistant(f"It is {number}."), user("thanks!")]):
        ferry.clock += 1
        turn = turn_id(ferry.clock)
        ferry.worker.request(request_meta(turn, ferry.clock), request_body(messages, **sampling))
        meta = reply_meta(turn, ferry.clock + 0.5, version_min=0, version_max=0)
        ferry.worker.reply(meta, reply_body(f"It is {number}."))


@pytest.fixture
def traffic(tmp_path, db):
    """Two answers sampled freely and two with top-p, each with a next state; the drainer knows no choice."""
    make_policy(db, config(tmp_path))
    ferry = Ferry(tmp_path, db)
    for number in range(4):
        record(ferry, number, **({"top_p": 0.9} if number % 2 else {}))
    ferry.drain()
    assert rows(db, REASONS) == [("awaiting_next", None, 4), ("scorable", None, 4)]


@pytest.mark.usefixtures("traffic")
def test_by_default_they_are_dropped_and_no_judge_is_asked(tmp_path, db):
    settings, _ = made(tmp_path, db, "drop")
    report = Scorer(db, settings).run_once(10)
    assert (report.scored, report.dropped) == (2, 2)
    assert rows(db, "select distinct sampling_class from votes join turns on id = turn_id") == [("free",)]
    assert isinstance(close_batch(db, settings, NOW), ClosedBatch)
    assert rows(db, REASONS) == [
        ("awaiting_next", None, 4),
        ("batched", None, 2),
        ("dropped", "sampling_truncated", 2),
    ]


@pytest.mark.usefixtures("traffic")
def test_chosen_they_are_scored_and_batched_like_others(tmp_path, db):
    settings, _ = made(tmp_path, db, "train")
    assert Scorer(db, settings).run_once(10).scored == 4
    assert isinstance(close_batch(db, settings, NOW), ClosedBatch)
    classes = "select sampling_class, count(*) from samples join turns on id = turn_id group by 1 order by 1"
    assert rows(db, classes) == [("free", 2), ("truncated", 2)]


@pytest.mark.usefixtures("traffic")
def test_judging_history_again_leaves_out_what_was_left_out(tmp_path, db):
    settings, _ = made(tmp_path, db, "drop")
    Scorer(db, settings).run_once(10)
    assert History(db, RulesJudge(), Window()).run().claimed == 2


def test_what_feedback_scored_is_dropped_when_a_batch_closes(tmp_path, db):
    """Or was scored before the setting changed."""
    settings, policy = made(tmp_path, db, "drop")
    fill(db, policy, range(4), sampling_class="truncated")
    assert isinstance(close_batch(db, settings, NOW), NoBatch)
    assert rows(db, REASONS) == [("dropped", "sampling_truncated", 4)]


def test_what_was_recorded_before_there_was_a_choice_stays_dropped(tmp_path, db):
    settings, policy = made(tmp_path, db, "train")
    fill(db, policy, range(4))
    with db.begin() as connection:
        connection.exec_driver_sql(
            "update turns set trainable = false, untrainable_reason = 'sampling_truncated',"
            " sampling_class = 'truncated'"
        )
        connection.exec_driver_sql("update turn_states set stage = 'dropped', reason = 'sampling_truncated'")
    Scorer(db, settings).run_once(10)
    assert isinstance(close_batch(db, settings, NOW), NoBatch)
    assert rows(db, REASONS) == [("dropped", "sampling_truncated", 4)]
