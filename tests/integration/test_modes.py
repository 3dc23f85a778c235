"""Distillation and both together, the guards, and shares of a batch: through the tables."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from sqlalchemy import text
from transformers import AutoModelForCausalLM

from dukou.store import batches, hints
from dukou.store.hints import NewHint
from learner.batch.close import ClosedBatch, NoBatch, close_batch
from learner.train import model
from learner.train.trainer import Trainer
from tests.fakes.training import NOW, config, fill, make_live, make_policy, rows
from tests.fakes.turns import turn_id

HINTED = np.array([9, 8, 7, 6], np.int32)


def soon():
    return datetime.now(UTC) + timedelta(seconds=5)


def tell(db, number, ids=HINTED, words="be brief"):
    with db.begin() as connection:
        hints.record(connection, turn_id(number), [NewHint(words, ids)])


def step(db, settings, trainer=None):
    outcome = close_batch(db, settings, soon())
    assert isinstance(outcome, ClosedBatch)
    return (trainer or Trainer(db, settings)).step(outcome.batch_id)


def test_in_opd_only_turns_with_a_hint_are_trained(db, tmp_path):
    settings = config(tmp_path, loss={"mode": "opd"})
    fill(db, make_policy(db, settings), range(6))
    for number in range(1, 5):
        tell(db, number)
    metrics = step(db, settings).metrics
    assert metrics["teacher/share"] == 1.0
    assert metrics["teacher/kl"] is not None
    assert rows(db, "select reason, count(*) from turn_states where stage = 'dropped' group by reason") == [
        ("no_hint", 2)
    ]


def test_in_combine_the_share_that_a_teacher_scored_is_known(db, tmp_path):
    settings = config(tmp_path, loss={"mode": "combine"})
    fill(db, make_policy(db, settings), range(4))
    tell(db, 1)
    metrics = step(db, settings).metrics
    assert metrics["teacher/share"] == pytest.approx(7 / (6 + 7 + 8 + 9))
    assert rows(db, "select count(hint_id), count(*) from samples") == [(1, 4)]


def test_in_rl_hints_change_nothing(db, tmp_path):
    settings = config(tmp_path)
    fill(db, make_policy(db, settings), range(4))
    tell(db, 1)
    assert step(db, settings).metrics["teacher/kl"] is None
    assert rows(db, "select count(hint_id) from samples") == [(0,)]


def test_a_hint_that_comes_after_the_batch_closed_is_not_used(db, tmp_path):
    """A replay is the same step."""
    settings = config(tmp_path, loss={"mode": "combine"})
    fill(db, make_policy(db, settings), range(4))
    tell(db, 1)
    outcome = close_batch(db, settings, soon())
    tell(db, 1, words="later")
    tell(db, 2)
    assert Trainer(db, settings).step(outcome.batch_id).metrics["teacher/share"] == pytest.approx(7 / 30)
    told = "select text from hints join samples on hint_id = hints.id"
    assert rows(db, told) == [("be brief",)]


def test_drift_freezes_learning_until_the_pointer_moves_or_the_limit_is_raised(db, tmp_path):
    """G23."""
    settings = config(tmp_path, guard={"max_kl": 1e-9})
    policy = make_policy(db, settings)
    trainer = Trainer(db, settings)
    fill(db, policy, range(4))
    assert step(db, settings, trainer).status == "trained"  # the first step begins at the base model
    make_live(db, settings, 1)
    fill(db, policy, range(4, 12), policy_version_min=1, policy_version_max=1)
    report = step(db, settings, trainer)
    assert (report.status, report.reason, report.version) == ("skipped", "drift", None)
    frozen = close_batch(db, settings, soon())
    assert isinstance(frozen, NoBatch)
    assert "frozen: kl/mean is" in frozen.because
    assert rows(db, "select count(*) from batches") == [(2,)]
    raised = config(tmp_path, guard={"max_kl": 5.0})
    assert step(db, raised).status == "trained"


def test_a_spike_is_skipped_and_says_its_numbers(db, tmp_path, monkeypatch):
    settings = config(tmp_path, guard={"max_spike": 1e-6})
    policy = make_policy(db, settings)
    monkeypatch.setattr(batches, "metrics", lambda *_, **__: [{"optim/grad_norm": 1.0}] * 5)
    fill(db, policy, range(4))
    report = step(db, settings)
    assert (report.reason, report.version) == ("grad_spike", None)
    [(detail,)] = rows(db, "select detail from batches where status = 'skipped'")
    assert "guard.max_spike" in detail


def test_a_long_session_leaves_room_for_others_and_its_rest_waits(db, tmp_path):
    settings = config(tmp_path, batch={"max_share_session": 0.5})
    policy = make_policy(db, settings)
    fill(db, policy, range(10), session_id="long")
    waiting = close_batch(db, settings, soon())
    assert isinstance(waiting, NoBatch)
    fill(db, policy, range(20, 24))
    assert isinstance(close_batch(db, settings, soon()), ClosedBatch)
    query = "select session_id, count(*) from samples join turns on turns.id = turn_id group by 1 order by 1"
    assert rows(db, query) == [("long", 2), ("s20", 1), ("s21", 1)]
    assert rows(db, "select count(*) from turn_states where stage = 'dropped'") == [(0,)]


def test_a_batch_closes_when_its_tokens_are_enough(db, tmp_path):
    settings = config(tmp_path, batch={"max_batch_tokens": 30, "rollout_batch_size": 16})
    fill(db, make_policy(db, settings), range(4))
    assert isinstance(close_batch(db, settings, soon()), ClosedBatch)
    assert rows(db, "select count(*) from samples") == [(2,)]


def test_the_first_ratio_is_known_only_for_what_the_same_weights_answered(db, tmp_path):
    """G12."""
    settings = config(tmp_path)
    policy = make_policy(db, settings)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    for number in range(4):
        answer = np.random.default_rng(number).integers(0, 512, 8).astype(np.int32)
        prompt = np.array([1, 2, 3], np.int32)
        logprobs = np.array(model.all_logprobs(base, [*prompt, *answer])[2:], np.float32)
        ids = {"prompt_ids": prompt, "response_ids": answer, "response_logprobs": logprobs}
        fill(db, policy, range(number, number + 1), temperature=1.0, **ids)
    trainer = Trainer(db, settings)
    metrics = step(db, settings, trainer).metrics
    assert metrics["first_ratio/mean"] == pytest.approx(0, abs=1e-4)
    assert metrics["first_ratio/p99"] < 1e-3
    assert metrics["first_ratio/share"] == 0
    fill(db, policy, range(10, 14))
    later = step(db, settings, trainer).metrics
    assert later["first_ratio/mean"] is None


def test_the_settings_a_batch_closed_under_are_those_of_its_replay(db, tmp_path):
    settings = config(tmp_path, guard={"max_kl": 0.0})
    fill(db, make_policy(db, settings), range(4))
    outcome = close_batch(db, settings, NOW)
    with db.begin() as connection:
        connection.execute(text("update batches set settings = settings"))
    changed = config(tmp_path, guard={"max_kl": 1e-12}, loss={"mode": "opd"})
    assert Trainer(db, changed).step(outcome.batch_id).status == "trained"
