"""What a version is tried on before it is live, and what is watched of it afterwards, in the tables."""

from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Engine

from dukou.store import batches, versions, watch
from dukou.store.states import Stage
from dukou.store.tables import samples
from learner.batch.close import ClosedBatch, close_batch
from learner.train.publish import advance
from learner.train.trainer import Trainer
from tests.fakes.training import NOW, config, fill, make_policy
from tests.fakes.turns import add_turn, turn_id

TOOL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Lisbon"}'}}
BROKEN = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": '}}


def test_held_out_are_the_newest_scored_turns_that_are_in_no_batch(db: Engine, tmp_path: Path) -> None:
    settings = config(tmp_path)
    policy = make_policy(db, settings)
    fill(db, policy, range(1, 9))
    assert isinstance(close_batch(db, settings, NOW), ClosedBatch)
    with db.begin() as connection:
        dropped = ((20, "stale"), (21, "too_long"), (22, "zero_score"))
        for number, reason in dropped:
            add_turn(connection, number, Stage.DROPPED, reason, policy_id=policy.id, score=0.0)
        add_turn(connection, 23, Stage.SCORABLE, policy_id=policy.id)
        add_turn(connection, 24, Stage.SCORED, policy_id=None, score=1.0)
        batched = set(connection.scalars(samples.select().with_only_columns(samples.c.turn_id)))
        found = [row.turn_id for row in watch.newest_held_out(connection, policy.id, 100, 64)]
        assert watch.newest_held_out(connection, policy.id, 0, 64) == []
        few = [row.turn_id for row in watch.newest_held_out(connection, policy.id, 2, 64)]
        short = watch.newest_held_out(connection, policy.id, 100, 3)
    waiting = [turn_id(number) for number in range(8, 0, -1) if turn_id(number) not in batched]
    assert len(waiting) == 4
    assert found == [turn_id(22), turn_id(20), *waiting]
    assert few == found[:2]
    assert [row.turn_id for row in short] == [turn_id(22), turn_id(20)]  # of 2 + 1 tokens; the others of 11


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_step_measures_what_it_did_to_held_out_answers(db: Engine, tmp_path: Path, method: str) -> None:
    settings = config(tmp_path, trainer={"method": method}, publish={"max_kl": 5})
    policy = make_policy(db, settings)
    fill(db, policy, range(1, 9))
    outcome = close_batch(db, settings, NOW)
    assert isinstance(outcome, ClosedBatch)
    measured = Trainer(db, settings).step(outcome.batch_id).metrics
    assert measured is not None
    assert measured["held/turns"] == 4.0
    assert measured["held/kl_last"] is not None
    assert 0 < measured["held/kl_last"] < 1
    # The first step begins at the base model: on the same tokens both distances are of the same pair.
    assert measured["held/kl_base"] == pytest.approx(measured["held/kl_last"], rel=0.5)
    assert measured["held/good"] is not None
    assert measured["held/bad"] is not None


def test_few_held_out_turns_are_no_measure(db: Engine, tmp_path: Path) -> None:
    settings = config(tmp_path)
    fill(db, make_policy(db, settings), range(1, 7))
    outcome = close_batch(db, settings, NOW)
    assert isinstance(outcome, ClosedBatch)
    measured = Trainer(db, settings).step(outcome.batch_id).metrics
    assert measured is not None
    assert (measured["held/turns"], measured["held/kl_last"], measured["held/good"]) == (2.0, None, None)


def test_a_version_that_spoils_held_out_answers_is_refused_and_the_live_one_stays(
    db: Engine, tmp_path: Path
) -> None:
    settings = config(tmp_path, trainer={"learning_rate": 3.0}, publish={"max_kl_last": 0.01})
    policy = make_policy(db, settings)
    fill(db, policy, range(1, 9))
    outcome = close_batch(db, settings, NOW)
    assert isinstance(outcome, ClosedBatch)
    trainer = Trainer(db, settings)
    assert trainer.step(outcome.batch_id).version == 1
    line = advance(db, settings, NOW, asked=False)
    with db.connect() as connection:
        row = versions.get(connection, policy.id, 1)
        measured = batches.measured(connection, policy.id, 1)
        assert versions.live(connection, "default") == versions.get(connection, policy.id, 0)
        assert batches.head(connection, policy.id, 0) == 0  # training goes on from the live version
    assert row.status == "refused"
    assert row.reason == (
        f"its KL to the version before is {measured['held/kl_last']:.3g} nats a token on 4 held-out turns, "
        "publish.max_kl_last allows 0.01"
    )
    assert line == f"refused version=1 because {row.reason}"


def test_refusals_and_unreadable_tool_calls_of_a_version_are_seen(db: Engine, tmp_path: Path) -> None:
    policy = make_policy(db, config(tmp_path)).id
    said = [
        "I'm sorry, but I can't help.",
        "I cannot do that.",
        "抱歉，我不能回答。",
        "Sorry is a short word?",
    ]
    said += ["The ferry leaves at nine.", "You cannot miss it.", "I can do that."]
    calls = [[TOOL], [TOOL, BROKEN], [BROKEN], None]
    with db.begin() as connection:
        for number, text in enumerate(said, start=1):
            add_turn(connection, number, Stage.SCORED, policy_id=policy, score=1.0, response_text=text)
        for number, made in enumerate(calls, start=101):
            text = None if made else 'Well: <tool_call>{"name": "wea'
            more = {"tool_calls": made, "response_text": text}
            add_turn(connection, number, Stage.SCORED, policy_id=policy, score=1.0, **more)
        seen = watch.figures(connection, policy, 0)
        unseen = watch.figures(connection, policy, 1)
    assert seen.score.count == 11
    assert (seen.refusals.count, seen.refusals.mean) == (8, pytest.approx(4 / 8))
    assert (seen.unreadable.count, seen.unreadable.mean) == (4, 0.75)
    assert unseen == watch.VersionFigures(*[watch.NO_SAMPLE] * 4)


def test_the_length_that_is_watched_is_of_what_may_be_trained(db: Engine, tmp_path: Path) -> None:
    policy = make_policy(db, config(tmp_path)).id
    with db.begin() as connection:
        for number, spans in enumerate((None, [0, 2, 5, 9], [3, 4])):
            more = {"response_ids": np.arange(10, dtype=np.int32), "response_logprobs": None}
            trained = None if spans is None else np.array(spans, np.int32)
            add_turn(connection, number, Stage.SCORED, policy_id=policy, trained_tokens=trained, **more)
        seen = watch.figures(connection, policy, 0).length
    assert (seen.count, seen.mean) == (3, pytest.approx((10 + 6 + 1) / 3))
