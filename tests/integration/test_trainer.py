"""One applied step for every turn, the same weights whatever was killed, versions that can be served."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sqlalchemy import text
from transformers import AutoModelForCausalLM

from dukou.store import processes, versions
from learner.batch.close import ClosedBatch, close_batch
from learner.train import export, files, gradient, model
from learner.train.ledger import StepStore, TrainerBusyError
from learner.train.trainer import Trainer
from tests.fakes.training import NOW, config, fill, make_live, make_policy, newest_unpublished, rows

METHODS = [{"method": "lora", "warmup_steps": 3}, {"method": "full", "learning_rate": 1e-3}]


def next_batch(db, settings):
    outcome = close_batch(db, settings, NOW)
    assert isinstance(outcome, ClosedBatch)
    return outcome.batch_id


def train(db, settings, trainer):
    report = trainer.step(next_batch(db, settings))
    if report.version is not None:
        make_live(db, settings, report.version)
    return report


def weights_of(settings, version):
    return load_file(settings.state_dir / "versions" / "default" / str(version) / "model.safetensors")


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("method", METHODS, ids=["lora", "full"])
def test_a_step_is_in_the_tables_on_disk_and_loadable(db, tmp_path, method):
    settings = config(tmp_path, trainer=method)
    policy = make_policy(db, settings)
    fill(db, policy, range(4))
    report = train(db, settings, Trainer(db, settings))
    assert (report.status, report.version, report.number) == ("trained", 1, 1)
    assert rows(db, "select distinct stage from turn_states") == [("trained",)]
    assert rows(db, "select status from batches") == [("trained",)]
    [(path, parent, status)] = rows(db, "select path, parent, status from versions where version = 1")
    assert (parent, status) == (0, "live")
    served = AutoModelForCausalLM.from_pretrained(path, local_files_only=True)
    [(probe,)] = rows(db, "select probe from versions where version = 1")
    for prompt in probe["prompts"]:
        assert len(prompt["logprobs"]) == len(prompt["ids"]) - 1
        measured = model.all_logprobs(served, prompt["ids"])
        assert measured == pytest.approx(prompt["logprobs"], abs=1e-4)
    assert not same(weights_of(settings, 1), load_file(tmp_path / "base" / "model.safetensors"))


def test_the_numbers_of_a_step_are_there_and_true(db, tmp_path):
    settings = config(tmp_path)
    policy = make_policy(db, settings)
    fill(db, policy, range(4))
    metrics = train(db, settings, Trainer(db, settings)).metrics
    lengths = [6, 7, 8, 9]
    assert metrics["reward/mean"] == 0.0
    assert metrics["tokens"] == sum(lengths) + 4 * 5
    assert metrics["completions/mean_length"] == pytest.approx(7.5)
    assert metrics["kl/mean"] == 0.0  # the first step begins at the base model
    assert 5 < metrics["entropy"] <= math.log(512)
    assert metrics["optim/grad_norm"] > 0
    assert metrics["clip_ratio/region_mean"] == 0.0
    assert metrics["completions/clipped_ratio"] == 0.0
    [(stored,)] = rows(db, "select metrics from steps")
    assert stored == metrics


def test_a_turns_tokens_that_must_not_be_trained_are_in_no_length_and_no_update(db, tmp_path):
    """Of ten tokens four may be trained; the others may say what they like of a log-probability."""
    masked, short = (config(tmp_path / name, loss={"kl": 0}) for name in ("masked", "short"))
    answer, logprobs = np.arange(10, 20, dtype=np.int32), np.full(10, -6.2, np.float32)
    found = []
    for settings, length, spans in ((masked, 10, np.array([0, 4], np.int32)), (short, 4, None)):
        more = {"response_ids": answer[:length], "response_logprobs": logprobs[:length]}
        more["response_logprobs"][4:] = -0.001
        fill(db, make_policy(db, settings), range(4), trained_tokens=spans, **more)
        metrics = train(db, settings, Trainer(db, settings)).metrics
        assert metrics["completions/mean_length"] == 4.0
        found.append(metrics)
        wipe(db)
    assert found[0]["tokens"] == found[1]["tokens"] + 4 * 6  # what a pass computes
    for name in ("loss", "entropy", "mismatch/share", "optim/grad_norm", "completions/distinct"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-4), name
    one, other = weights_of(masked, 1), weights_of(short, 1)
    assert not same(one, load_file(tmp_path / "masked" / "base" / "model.safetensors"))
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=1e-5, rtol=1e-3)


def test_without_a_kl_term_the_kl_is_unknown_not_zero(db, tmp_path):
    settings = config(tmp_path, loss={"kl": 0})
    fill(db, make_policy(db, settings), range(4))
    assert train(db, settings, Trainer(db, settings)).metrics["kl/mean"] is None


def test_good_answers_become_likelier_than_bad_ones(db, tmp_path):
    settings = config(tmp_path, loss={"kl": 0}, advantage={"kind": "batch"})
    policy = make_policy(db, settings)
    trainer = Trainer(db, settings)
    good, bad = 7, 9
    for start in range(0, 12, 4):
        for number in range(start, start + 4):
            answer = np.full(3, good if number % 2 else bad, np.int32)
            logprobs = np.full(3, -6.2, np.float32)
            fill(db, policy, range(number, number + 1), response_ids=answer, response_logprobs=logprobs)
        train(db, settings, trainer)
    trained = AutoModelForCausalLM.from_pretrained(settings.state_dir / "versions" / "default" / "3")
    praised, blamed = (model.all_logprobs(trained, [1, 2, token])[1] for token in (good, bad))
    assert praised > blamed + 0.5


@pytest.mark.parametrize("method", METHODS, ids=["lora", "full"])
def test_a_restart_in_between_changes_no_bit(db, tmp_path, method):
    """G21, and N steps straight = k steps, a new trainer, N − k steps."""
    straight, restarted = (config(tmp_path / name, trainer=method) for name in ("straight", "restarted"))
    for settings, stops in ((straight, False), (restarted, True)):
        policy = make_policy(db, settings)
        trainer = Trainer(db, settings)
        for start in range(0, 12, 4):
            fill(db, policy, range(start, start + 4))
            if stops:
                trainer = Trainer(db, settings)
                trainer.recover()
            train(db, settings, trainer)
        wipe(db)
    assert same(weights_of(straight, 3), weights_of(restarted, 3))
    states = [
        torch.load(s.state_dir / "checkpoints" / "default" / "3" / "optimizer.pt")["optimizer"]["state"]
        for s in (straight, restarted)
    ]
    assert states[1][0]["step"] == 3
    assert all(torch.equal(states[0][p]["exp_avg_sq"], states[1][p]["exp_avg_sq"]) for p in states[0])


def wipe(db):
    with db.begin() as connection:
        connection.execute(
            text(
                "truncate policies, versions, turns, turn_states, scores, batches, samples, steps, leases"
                " restart identity cascade"
            )
        )


class Killed(BaseException):
    """As a signal: no `except Exception` may swallow it."""


#: (where, whether before or after the real thing)
CRASHES = [
    (gradient, "accumulate", "before"),
    (gradient, "accumulate", "after"),
    (export, "write_merged", "before"),
    (export, "write_merged", "after"),
    (files, "write", "before"),
    (files, "write", "after"),
    (StepStore, "write", "after"),
]


@pytest.mark.parametrize(
    ("place", "name", "when"), CRASHES, ids=[f"{when} {name}" for _, name, when in CRASHES]
)
def test_killed_anywhere_every_turn_is_in_one_step_and_the_weights_are_the_same(
    db, tmp_path, monkeypatch, place, name, when
):
    """G20."""
    undisturbed, killed = config(tmp_path / "undisturbed"), config(tmp_path / "killed")
    policy = make_policy(db, undisturbed)
    fill(db, policy, range(8))
    trainer = Trainer(db, undisturbed)
    train(db, undisturbed, trainer)
    train(db, undisturbed, trainer)
    wipe(db)

    policy = make_policy(db, killed)
    fill(db, policy, range(8))
    train(db, killed, Trainer(db, killed))
    real = getattr(place, name)

    def dies(*args, **kwargs):
        if when == "after":
            real(*args, **kwargs)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(place, name, dies)
        with pytest.raises(Killed):
            Trainer(db, killed).step(next_batch(db, killed))
    resumed = Trainer(db, killed)
    adopted = resumed.recover()
    assert adopted == ([2] if (name, when) == ("write", "after") and place is files else [])
    assert resumed.recover() == []
    outcome = close_batch(db, killed, NOW)
    if isinstance(outcome, ClosedBatch):
        resumed.step(outcome.batch_id)
    assert rows(db, "select version, number from steps order by number") == [(1, 1), (2, 2)]
    assert rows(db, "select count(*), count(distinct turn_id) from samples join steps using (batch_id)") == [
        (8, 8)
    ]
    assert rows(db, "select distinct stage from turn_states") == [("trained",)]
    assert same(weights_of(undisturbed, 2), weights_of(killed, 2))
    assert not list((killed.state_dir / "versions" / "default").glob("*.partial")) or when == "before"


def test_a_step_that_raised_leaves_the_next_try_of_the_same_trainer_at_the_same_weights(
    db, tmp_path, monkeypatch
):
    settings, straight = config(tmp_path / "a"), config(tmp_path / "b")
    for current, fails in ((straight, False), (settings, True)):
        fill(db, make_policy(db, current), range(4))
        trainer = Trainer(db, current)
        if fails:
            with monkeypatch.context() as patch:
                patch.setattr(files, "write", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
                with pytest.raises(OSError, match="disk full"):
                    trainer.step(next_batch(db, current))
        train(db, current, trainer)
        wipe(db)
    assert same(weights_of(settings, 1), weights_of(straight, 1))


def test_a_checkpoint_of_another_database_is_not_adopted(db, tmp_path):
    settings = config(tmp_path)
    fill(db, make_policy(db, settings), range(4))
    train(db, settings, Trainer(db, settings))
    wipe(db)
    fill(db, make_policy(db, settings), range(20, 24))
    batch_id = next_batch(db, settings)
    assert Trainer(db, settings).recover() == []
    assert Trainer(db, settings).step(batch_id).version == 1


def test_a_batch_whose_loss_is_not_finite_is_skipped_with_a_reason(db, tmp_path, monkeypatch):
    settings = config(tmp_path)
    policy = make_policy(db, settings)
    fill(db, policy, range(4))
    with db.begin() as connection:
        connection.execute(text("update scores set value = 1"))
    batch_id = next_batch(db, settings)
    with db.begin() as connection:
        connection.execute(text("update samples set advantage = 'NaN'"))
    trainer = Trainer(db, settings)
    report = trainer.step(batch_id)
    assert (report.status, report.reason, report.version) == ("skipped", "not_finite", None)
    assert rows(db, "select status, reason from batches") == [("skipped", "not_finite")]
    assert rows(db, "select distinct stage, reason from turn_states") == [("dropped", "not_finite")]
    assert rows(db, "select count(*) from steps") == [(0,)]
    fill(db, policy, range(4, 8))
    assert train(db, settings, trainer).version == 1


def test_after_a_rollback_training_goes_on_from_the_live_version(db, tmp_path):
    settings, clean = config(tmp_path / "rolled"), config(tmp_path / "clean")
    policy = make_policy(db, clean)
    fill(db, policy, range(4))
    fill(db, policy, range(8, 12))
    trainer = Trainer(db, clean)
    train(db, clean, trainer)
    train(db, clean, trainer)
    wipe(db)

    policy = make_policy(db, settings)
    fill(db, policy, range(8))
    trainer = Trainer(db, settings)
    train(db, settings, trainer)
    train(db, settings, trainer)
    make_live(db, settings, 1)
    fill(db, policy, range(8, 12))
    report = train(db, settings, trainer)
    assert report.version == 3
    assert rows(db, "select parent from versions where version = 3") == [(1,)]
    # Batch 2's baseline differs between the two runs, so the direction is compared, not the bits.
    gone, kept, expected = weights_of(settings, 2), weights_of(settings, 1), weights_of(clean, 1)
    assert same(kept, expected)
    assert not same(gone, weights_of(settings, 3))


def test_back_at_version_zero_training_begins_anew(db, tmp_path):
    settings = config(tmp_path, advantage={"kind": "raw"})
    policy = make_policy(db, settings)
    fill(db, policy, range(4))
    trainer = Trainer(db, settings)
    train(db, settings, trainer)
    make_live(db, settings, 0)
    fill(db, policy, range(10, 14))
    train(db, settings, trainer)
    again = config(tmp_path / "again", advantage={"kind": "raw"})
    wipe(db)
    policy = make_policy(db, again)
    fill(db, policy, range(10, 14))
    train(db, again, Trainer(db, again))
    assert same(weights_of(settings, 2), weights_of(again, 1))


def test_a_batch_closed_for_a_version_that_was_rolled_back_is_skipped(db, tmp_path):
    settings = config(tmp_path)
    policy = make_policy(db, settings)
    fill(db, policy, range(4))
    trainer = Trainer(db, settings)
    train(db, settings, trainer)
    fill(db, policy, range(4, 8), policy_version_min=1, policy_version_max=1)
    batch_id = next_batch(db, settings)
    make_live(db, settings, 0)
    assert trainer.step(batch_id).reason == "not_an_ancestor"


def test_unpublished_steps_build_on_each_other(db, tmp_path):
    settings = config(tmp_path, publish={"automatic": False})
    policy = make_policy(db, settings)
    trainer = Trainer(db, settings)
    for start in (0, 4):
        fill(db, policy, range(start, start + 4))
        trainer.step(next_batch(db, settings))
    assert rows(db, "select version, parent from versions order by version") == [(0, None), (1, 0), (2, 1)]
    assert newest_unpublished(db, settings) == 2
    make_live(db, settings, 2)
    assert newest_unpublished(db, settings) is None


def test_only_one_trainer_trains_a_policy(db, tmp_path):
    settings = config(tmp_path)
    fill(db, make_policy(db, settings), range(4))
    batch_id = next_batch(db, settings)
    with db.begin() as connection:
        processes.acquire(connection, "trainer:default", "somebody else", 60)
    with pytest.raises(TrainerBusyError):
        Trainer(db, settings).step(batch_id)


def test_a_trainer_that_lost_its_lease_writes_nothing(db, tmp_path, monkeypatch):
    settings = config(tmp_path)
    fill(db, make_policy(db, settings), range(4))
    batch_id = next_batch(db, settings)
    trainer = Trainer(db, settings)
    real = gradient.accumulate

    def overtaken(*args):
        StepStore(db, "default", trainer.checkpoints).acquire()
        return real(*args)

    monkeypatch.setattr(gradient, "accumulate", overtaken)
    with pytest.raises(processes.LeaseLostError):
        trainer.step(batch_id)
    assert rows(db, "select count(*) from steps") == [(0,)]


def test_old_checkpoints_go_and_the_live_one_stays(db, tmp_path):
    settings = config(tmp_path, trainer={"keep_checkpoints": 1}, publish={"automatic": False})
    policy = make_policy(db, settings)
    trainer = Trainer(db, settings)
    for number, start in enumerate(range(0, 16, 4)):
        fill(db, policy, range(start, start + 4))
        version = trainer.step(next_batch(db, settings)).version
        if number == 0:
            make_live(db, settings, version)
    state = settings.state_dir
    assert list(files.numbered(state / "checkpoints" / "default")) == [1, 4]
    assert list(files.numbered(state / "versions" / "default")) == [1, 4]


def test_an_adapter_folder_holds_exactly_what_is_trained(db, tmp_path):
    """G22."""
    settings = config(tmp_path, publish={"form": "adapter"})
    fill(db, make_policy(db, settings), range(4))
    report = train(db, settings, Trainer(db, settings))
    path = settings.state_dir / "versions" / "default" / str(report.version)
    tensors = load_file(path / "adapter_model.safetensors")
    masters = load_file(settings.state_dir / "checkpoints" / "default" / "1" / "masters.safetensors")
    assert len(tensors) == len(masters) == 2 * 7 * 2
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    assert torch.equal(tensors[name], masters["model.layers.0.self_attn.q_proj.lora_A"])
    description = json.loads((path / "adapter_config.json").read_text())
    assert (description["r"], description["lora_alpha"]) == (4, 32)
    assert rows(db, "select form from versions where version = 1") == [("adapter",)]


def test_an_adapter_of_full_weights_is_refused_at_start(db, tmp_path):
    with pytest.raises(ValueError, match="lora"):
        Trainer(db, config(tmp_path, trainer={"method": "full"}, publish={"form": "adapter"}))


def test_turns_without_recorded_logprobs_are_trained_without_importance_weight(db, tmp_path):
    settings = config(tmp_path)
    fill(db, make_policy(db, settings), range(4), response_logprobs=None)
    metrics = train(db, settings, Trainer(db, settings)).metrics
    assert metrics["mismatch_kl/mean"] is None
    assert metrics["recorded/share"] == 0.0


def test_versions_only_grow_whatever_was_there(db, tmp_path):
    """W12."""
    settings = config(tmp_path)
    policy = make_policy(db, settings)
    with db.begin() as connection:
        versions.insert(connection, versions.NewVersion(policy.id, 57, 0, None, "x", "full", None))
        versions.refuse(connection, policy.id, 57, "test")
    fill(db, policy, range(4))
    assert train(db, settings, Trainer(db, settings)).version == 58
