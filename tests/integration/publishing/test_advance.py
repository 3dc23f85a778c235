"""What the learner does with the live pointer by itself."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from sqlalchemy import Engine, insert

from dukou.settings.model import Config
from dukou.store import policies, publishing, versions
from dukou.store.states import Stage
from dukou.store.tables import batches, steps
from dukou.store.versions import Form, NewVersion
from dukou.store.watch import CacheCost, cache_cost, why_wait
from learner.train.publish import advance
from tests.fakes.turns import add_turn, turn_id

NOW = datetime.now(UTC)


def config(**sections: Any) -> Config:
    watch = {"turns": 5, "drop": 0.2, "confidence": 0.9, **sections.pop("watch", {})}
    return Config.model_validate({"watch": watch, **sections})


ON_TRIAL = {"form": "adapter", "trial_share": 0.1}


def make(db: Engine, *numbers: int, form: Form = "adapter") -> int:
    with db.begin() as connection:
        policy = policies.get_or_create(connection, "default", "global", "base").id
        for number in numbers:
            new = NewVersion(policy, number, number - 1, None, f"v{number}", form, None)
            versions.insert(connection, new)
    return policy


def answered(db: Engine, policy: int, version: int, scores: list[float]) -> None:
    """Turns that one version answered, each with its score."""
    with db.begin() as connection:
        for index, score in enumerate(scores):
            add_turn(
                connection,
                1000 * version + index + 1,
                Stage.SCORED,
                policy_id=policy,
                score=score,
                policy_version_min=version,
                policy_version_max=version,
                response_ids=np.array([3], np.int32),
            )


def state(db: Engine, policy: int) -> publishing.Pointers:
    with db.connect() as connection:
        return publishing.pointers(connection, policy)


def test_the_newest_version_becomes_live_once(db: Engine) -> None:
    make(db, 1, 2)
    assert str(advance(db, config(), NOW, asked=False)).startswith("published version=2")
    assert advance(db, config(), NOW, asked=False) is None


def test_nothing_moves_where_it_is_not_automatic_or_pinned(db: Engine) -> None:
    policy = make(db, 1)
    manual = config(publish={"automatic": False})
    assert advance(db, manual, NOW, asked=False) is None
    with db.begin() as connection:
        publishing.pin(connection, policy)
    assert advance(db, config(), NOW, asked=True) is None
    with db.begin() as connection:
        publishing.unpin(connection, policy)
    assert advance(db, manual, NOW, asked=True) is not None


def test_a_live_version_whose_scores_fell_is_rolled_back_and_the_reason_stays(db: Engine) -> None:
    policy = make(db, 1)
    answered(db, policy, 0, [1, 1, 1, 0, 1, 1])
    advance(db, config(), NOW, asked=False)
    answered(db, policy, 1, [-1, -1, 0, -1])
    assert advance(db, config(), NOW, asked=False) is None  # four turns are too few
    answered(db, policy, 1, [])
    with db.begin() as connection:
        add_turn(
            connection,
            1990,
            Stage.SCORED,
            policy_id=policy,
            score=-1,
            policy_version_min=1,
            policy_version_max=1,
        )
    line = advance(db, config(publish={"automatic": False}), NOW, asked=False)
    assert str(line).startswith("rolled back version=1 to version=0 because the mean score fell from 0.83")
    assert state(db, policy).live == 0
    with db.connect() as connection:
        assert "the mean score fell" in str(versions.get(connection, policy, 1).reason)
    assert advance(db, config(), NOW, asked=False) is None  # it was live once: it stays behind


def test_a_new_adapter_is_tried_first_and_goes_live_when_it_is_not_worse(db: Engine) -> None:
    policy = make(db, 1)
    settings = config(publish=ON_TRIAL, trainer={"method": "lora"})
    answered(db, policy, 0, [0, 1, 0, 1, 0, 1])
    assert str(advance(db, settings, NOW, asked=False)).startswith("trying version=1 on 10%")
    assert state(db, policy).live == 0
    assert advance(db, settings, NOW, asked=False) is None
    answered(db, policy, 1, [1, 1, 0, 1, 0])
    assert "after its trial (5 scored turns)" in str(advance(db, settings, NOW, asked=False))
    assert state(db, policy) == publishing.Pointers(1, False, None)


def test_a_trial_that_is_worse_is_refused_with_the_reason(db: Engine) -> None:
    policy = make(db, 1)
    settings = config(publish=ON_TRIAL)
    answered(db, policy, 0, [1, 1, 1, 0, 1, 1])
    advance(db, settings, NOW, asked=False)
    answered(db, policy, 1, [-1, -1, 0, -1, -1])
    assert "refused version=1 because on trial the mean score fell" in str(
        advance(db, settings, NOW, asked=False)
    )
    with db.connect() as connection:
        assert versions.get(connection, policy, 1).status == "refused"
    assert state(db, policy) == publishing.Pointers(0, False, None)


def test_a_trial_that_nobody_scores_ends_with_time(db: Engine) -> None:
    policy = make(db, 1)
    settings = config(publish={**ON_TRIAL, "trial_seconds": 60})
    advance(db, settings, NOW, asked=False)
    assert advance(db, settings, NOW + timedelta(seconds=30), asked=False) is None
    assert advance(db, settings, NOW + timedelta(seconds=3600), asked=False) is not None
    assert state(db, policy).live == 1


def test_a_version_too_far_from_the_base_model_is_refused_before_anybody_gets_it(db: Engine) -> None:
    policy = make(db, 1)
    with db.begin() as connection:
        row = {"policy_id": policy, "live_version": 0, "closed_because": "full", "settings": {}}
        made = insert(batches).values(**row, baseline={}).returning(batches.c.id)
        batch = connection.execute(made).scalar_one()
        step = {"batch_id": batch, "policy_id": policy, "number": 1, "version": 1, "checkpoint": "c"}
        connection.execute(insert(steps).values(**step, metrics={"kl/mean": 0.9}, seconds=1.0))
    line = advance(db, config(publish={"max_kl": 0.5}), NOW, asked=False)
    assert line == (
        "refused version=1 because its KL to the base model is 0.9 nats a token, publish.max_kl allows 0.5"
    )
    assert state(db, policy).live == 0


def test_the_next_publish_waits_until_the_last_one_is_paid_for(db: Engine) -> None:
    policy = make(db, 1, 2)
    with db.begin() as connection:
        publishing.publish(connection, policy, 1)
        for number, parent, version, prompt in ((1, None, 0, 90), (2, 1, 1, 100), (3, 2, 1, 120)):
            add_turn(
                connection,
                number,
                Stage.AWAITING_NEXT,
                policy_id=policy,
                policy_version_min=version,
                policy_version_max=version,
                prompt_ids=np.arange(prompt, dtype=np.int32),
                response_ids=np.arange(10, dtype=np.int32),
                response_logprobs=np.zeros(10, np.float32),
                parent_id=turn_id(parent) if parent else None,
            )
        paid = cache_cost(connection, policy, 1)
    # turn 2 computes turn 1's 90 + 10 tokens again, and 10 new ones; turn 3 finds them and adds 20
    assert paid == CacheCost(cold=100, fresh=30)
    assert advance(db, config(publish={"max_cold_share": 0.5}), NOW, asked=False) is None
    assert "waits for 200" in str(why_wait(paid, 0.5))
    assert advance(db, config(publish={"max_cold_share": 4.0}), NOW, asked=False) is not None


def test_a_person_may_publish_whatever_it_costs(db: Engine) -> None:
    assert why_wait(CacheCost(cold=10**9, fresh=0), 0) is None
    make(db, 1)
    assert advance(db, config(publish={"max_cold_share": 0.001}), NOW, asked=True) is not None
