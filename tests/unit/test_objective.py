"""The gradient of a batch does not depend on how it is cut into micro-batches."""

import uuid
from dataclasses import replace

import numpy as np
import pytest
import torch

from dukou.settings.learning import LossSettings, TrainerSettings
from learner.train import gradient, loss, model, weights
from learner.train.samples import Sample
from tests.fakes.tiny_llama import VOCABULARY, save


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save(tmp_path_factory.mktemp("base"))


def batch():
    generator = np.random.default_rng(3)
    samples = []
    for number, (prompt, answer) in enumerate([(4, 10), (9, 40), (5, 11), (3, 2), (20, 25)]):
        rollout = -6.2 + 0.3 * generator.standard_normal(answer).astype(np.float32)
        rollout[::7] = np.nan
        samples.append(
            Sample(
                uuid.UUID(int=number),
                generator.integers(0, VOCABULARY, prompt + answer),
                prompt,
                rollout.astype(np.float32),
                0.7 + 0.1 * number,
                (-1.0) ** number,
                0.0,
                0,
                False,
            )
        )
    return samples


def gradients(base, settings, **trainer):
    config = TrainerSettings(**{"lora_rank": 4, **trainer})
    trained = weights.of(model.load(base, torch.device("cpu")), config, settings)
    with torch.no_grad():
        for number, master in enumerate(trained.masters.values()):
            master += 0.02 * torch.randn(master.shape, generator=torch.Generator().manual_seed(number))
    trained.spread()
    totals = gradient.accumulate(trained, batch(), settings, config)
    return {name: master.grad for name, master in trained.masters.items()}, totals


@pytest.mark.parametrize("how", ["token_mean", "sequence_mean", "fixed_length"])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_micro_batches_change_neither_gradient_nor_sums(base, how, method):
    """G7."""
    settings = LossSettings(aggregation=how)
    one, whole = gradients(base, settings, method=method, micro_batch_tokens=1)
    many, packed = gradients(base, settings, method=method, micro_batch_tokens=4096)
    for name in one:
        torch.testing.assert_close(one[name], many[name], atol=1e-6, rtol=1e-4)
    assert whole.loss == pytest.approx(packed.loss, abs=1e-6)
    assert whole.tokens == packed.tokens == sum(s.scored for s in batch())


def test_the_loss_is_the_formula_over_the_whole_batch(base):
    settings = LossSettings(kl=0.1)
    _, totals = gradients(base, settings)
    trained = weights.of(model.load(base, torch.device("cpu")), TrainerSettings(lora_rank=4), settings)
    reference = [model.answers(trained.model, [s]).logprobs.detach() for s in batch()]
    with torch.no_grad():
        for number, master in enumerate(trained.masters.values()):
            master += 0.02 * torch.randn(master.shape, generator=torch.Generator().manual_seed(number))
        new = [model.answers(trained.model, [s]).logprobs for s in batch()]
    tokens = sum(s.scored for s in batch())
    expected = sum(
        (
            -s.advantage * loss.importance_weight(n, torch.from_numpy(s.rollout), 2.0) + 0.1 * loss.k3(n, r)
        ).sum()
        for s, n, r in zip(batch(), new, reference, strict=True)
    )
    assert totals.loss == pytest.approx(float(expected) / tokens, abs=1e-5)
    assert totals.kl > 0
    assert totals.clipped == 0


def test_tokens_without_a_recorded_logprob_are_not_part_of_the_mismatch(base):
    _, totals = gradients(base, LossSettings())
    assert totals.recorded == sum(np.isfinite(s.rollout).sum() for s in batch())
    assert 0 < totals.mismatched < totals.recorded


def test_the_kl_weight_reaches_the_gradient(base):
    without, _ = gradients(base, LossSettings(kl=0))
    strong, _ = gradients(base, LossSettings(kl=10))
    assert any(not torch.allclose(without[name], strong[name]) for name in without)


def test_distillation_moves_the_answer_towards_what_the_hint_makes_of_it(base):
    """To first order: the logprobs move along teacher − old, on the tokens that a teacher scored."""
    config = TrainerSettings(lora_rank=4)
    trained = weights.of(model.load(base, torch.device("cpu")), config, LossSettings(mode="opd"))
    sample = replace(batch()[1], rollout=np.full(40, np.nan, np.float32))
    hinted = replace(sample, hinted_prompt=np.arange(30))
    with torch.no_grad():
        old = model.answers(trained.model, [sample]).logprobs
        gap = model.answers(trained.model, [hinted.as_hinted()]).logprobs - old
    settings = LossSettings(kl=0, mode="opd")
    totals = gradient.accumulate(trained, [hinted, batch()[0]], settings, config)
    assert (totals.taught, totals.gap) == (40, pytest.approx(-float(gap.sum()), abs=1e-3))
    with torch.no_grad():
        for master in trained.masters.values():
            master -= 0.5 * master.grad
        moved = model.answers(trained.model, [sample]).logprobs - old
    assert float(moved @ gap) > 0


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("teacher", ["base", "current"])
def test_the_base_teaches_as_it_is_and_the_present_weights_teach_as_they_are(base, method, teacher):
    config, settings = (
        TrainerSettings(lora_rank=4, method=method),
        LossSettings(kl=0, mode="opd", teacher=teacher),
    )
    trained = weights.of(model.load(base, torch.device("cpu")), config, settings)
    with torch.no_grad():
        for master in trained.masters.values():
            master += 0.02 * torch.ones_like(master)
    trained.spread()
    sample = replace(batch()[1], hinted_prompt=np.arange(30))
    teaching = model.load(base, torch.device("cpu")) if teacher == "base" else trained.model
    with torch.no_grad():
        old = model.answers(trained.model, [sample]).logprobs
        told = model.answers(teaching, [sample.as_hinted()]).logprobs
    totals = gradient.accumulate(trained, [sample], settings, config)
    assert totals.gap == pytest.approx(float((old - told).sum()), rel=1e-4, abs=1e-3)


def test_without_a_teacher_distillation_leaves_no_gradient(base):
    found, totals = gradients(base, LossSettings(kl=0, mode="opd"))
    assert totals.taught == 0
    assert all(not gradient.any() for gradient in found.values() if gradient is not None)
