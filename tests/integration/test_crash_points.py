"""G20 in process: a learner dies before or after each commit and each change to the disk, and comes back."""

import random
import shutil
from datetime import UTC, datetime, timedelta

import pytest
import torch
from safetensors.torch import load_file
from sqlalchemy import text

from learner.batch.close import ClosedBatch, close_batch
from learner.train import files
from learner.train.publish import advance
from learner.train.trainer import Trainer
from tests.fakes.crash import Killed, Mortal
from tests.fakes.replay import replayed
from tests.fakes.training import config, fill, make_policy, rows

TURNS, SIZE = 12, 4
METHODS = {
    "lora": {"trainer": {"keep_checkpoints": 1}},
    "adapter": {"trainer": {"keep_checkpoints": 1}, "publish": {"form": "adapter"}},
    "full": {"trainer": {"method": "full", "learning_rate": 1e-3, "keep_checkpoints": 1}},
}
TABLES = "policies, versions, turns, turn_states, scores, batches, samples, steps, leases"


def settings_of(tmp_path, method):
    return config(
        tmp_path, batch={"max_staleness": 1000, "min_size": 1}, guard={"max_kl": 0}, **METHODS[method]
    )


def life(db, settings, arrivals):
    """A learner's life from its start, until every turn is trained. `arrivals`: numbers of turns that come
    from outside, a few before each round."""
    trainer = Trainer(db, settings)
    trainer.recover()
    while True:
        come = arrivals.pop(0) if arrivals else range(0)
        with pytest.MonkeyPatch.context() as outside:
            outside.setattr(db.dialect, "do_commit", type(db.dialect).do_commit.__get__(db.dialect))
            fill(db, arrivals.policy, come)
        now = datetime.now(UTC) + timedelta(hours=2)
        advance(db, settings, now, asked=False)
        outcome = close_batch(db, settings, now)
        if isinstance(outcome, ClosedBatch):
            trainer.step(outcome.batch_id)
        elif not arrivals:
            return


class Arrivals(list):
    """Turns in the order and the portions that a seed decides; what a dead learner saw come is there."""

    def __init__(self, policy, chance):
        cuts = sorted(chance.sample(range(1, TURNS), chance.randrange(3)))
        super().__init__(range(a, b) for a, b in zip([0, *cuts], [*cuts, TURNS], strict=True))
        self.policy = policy


def run(db, settings, seed, deaths):
    """One history with deaths at these points, each counted from the life's start; the points passed."""
    with db.begin() as connection:
        connection.execute(text(f"truncate {TABLES} restart identity cascade"))
    shutil.rmtree(settings.state_dir, ignore_errors=True)
    arrivals = Arrivals(make_policy(db, settings), random.Random(seed))
    where = []
    for dies_at in [*deaths, None]:
        mortal = Mortal(dies_at)
        with pytest.MonkeyPatch.context() as patch:
            mortal.lives(patch, db)
            try:
                life(db, settings, arrivals)
            except Killed as killed:
                where.append(str(killed))
                continue
        break
    check(db, settings, f"seed {seed}, killed at {where}")
    return mortal.points


def check(db, settings, history):
    counts = "select count(*), count(distinct turn_id) from samples join steps using (batch_id)"
    assert rows(db, counts) == [(TURNS, TURNS)], history
    assert rows(db, "select stage, count(*) from turn_states group by 1") == [("trained", TURNS)], history
    assert rows(db, "select distinct status from batches") == [("trained",)], history
    numbers = [number for (number,) in rows(db, "select number from steps order by 1")]
    assert numbers == list(range(1, len(numbers) + 1)), history
    [(live, newest)] = rows(db, "select live_version, max(version) from policies, versions group by 1")
    assert live == newest, history
    checkpoints = files.numbered(settings.state_dir / "checkpoints" / "default")
    assert numbers[-1] in checkpoints, history
    assert live in files.numbered(settings.state_dir / "versions" / "default"), history
    masters = load_file(checkpoints[numbers[-1]] / "masters.safetensors")
    again = replayed(db, settings)
    assert all(torch.equal(masters[name], again[name]) for name in again), history


def test_a_learner_killed_at_any_of_some_points_trains_every_turn_once(db, tmp_path):
    settings = settings_of(tmp_path, "lora")
    points = run(db, settings, 0, [])
    assert points > 100
    chance = random.Random(1)
    for seed in range(10):
        run(db, settings, seed, [chance.randrange(points) for _ in range(1 + seed % 3)])


@pytest.mark.slow
@pytest.mark.parametrize(("method", "every"), [("lora", 1), ("adapter", 5), ("full", 5)])
def test_a_learner_killed_at_every_point_trains_every_turn_once(db, tmp_path, method, every):
    settings = settings_of(tmp_path, method)
    for dies_at in range(0, run(db, settings, 0, []), every):
        run(db, settings, 0, [dies_at])


@pytest.mark.slow
def test_a_learner_killed_again_and_again_trains_every_turn_once(db, tmp_path):
    settings, chance = settings_of(tmp_path, "lora"), random.Random(2)
    for seed in range(100):
        run(db, settings, seed, [chance.randrange(150) for _ in range(chance.randrange(1, 5))])
