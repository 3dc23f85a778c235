"""Masks, denominators, outliers."""

import math

import pytest
import torch

from learner.train import loss


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("token_mean", ([-0.1] * 2, [0.1] * 8)),
        ("sequence_mean", ([-0.25] * 2, [0.0625] * 8)),
        ("fixed_length", ([-1 / 32] * 2, [1 / 32] * 8)),
    ],
)
def test_each_aggregation_gives_each_token_its_own_gradient(how, expected):
    """G9: a short good answer and a long bad one."""
    lengths = [2, 8]
    new = torch.zeros(10, requires_grad=True)
    advantages = torch.tensor([1.0] * 2 + [-1.0] * 8)
    weights = torch.tensor(loss.token_weights(lengths, how, 16)).repeat_interleave(torch.tensor(lengths))
    (loss.ppo_clip(new, new.detach(), advantages, low=0.2, high=0.28) * weights).sum().backward()
    assert new.grad.tolist() == pytest.approx(expected[0] + expected[1])


def test_tokens_count_alike_however_the_batch_is_cut():
    """G7: 10 tokens with loss 1 and 90 with loss 0 are 0.1, not the mean of two means."""
    weights = loss.token_weights([10, 90], "token_mean", 1)
    assert 10 * 1.0 * weights[0] + 90 * 0.0 * weights[1] == pytest.approx(0.1)


def test_a_sequence_without_scored_tokens_is_refused_instead_of_counted():
    """G6: the denominator counts exactly what the numerator sums."""
    with pytest.raises(ValueError, match="at least one scored token"):
        loss.token_weights([100, 0], "token_mean", 1)


@pytest.mark.parametrize("difference", [60.0, -60.0, 1000.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_outlier_token_stays_finite_and_bounded(difference, sign):
    """G11."""
    new = torch.zeros(100)
    new[7] = difference
    new.requires_grad_()
    old = torch.zeros(100)
    per_token = loss.ppo_clip(new, old, torch.full((100,), sign), low=0.2, high=0.28, dual=3.0)
    (per_token.mean() + 0.1 * loss.k3(new, old).clamp(max=1e9).mean()).backward()
    assert torch.isfinite(new.grad).all()
    assert per_token.abs().max() <= 3.0
    assert new.grad.abs().max() <= 1.0


def test_without_the_dual_clip_the_outlier_would_run_away():
    new, old = torch.tensor([15.0]), torch.tensor([0.0])
    bad = torch.tensor([-1.0])
    assert loss.ppo_clip(new, old, bad, low=0.2, high=0.28).item() > 1e6
    assert loss.ppo_clip(new, old, bad, low=0.2, high=0.28, dual=3.0).item() == 3.0


def test_the_importance_weight_is_capped_and_has_no_gradient():
    old = torch.tensor([0.0, -1.0, 5.0], requires_grad=True)
    weight = loss.importance_weight(old, torch.zeros(3), cap=2.0)
    assert weight.tolist() == pytest.approx([1.0, math.exp(-1), 2.0])
    assert not weight.requires_grad


def test_a_token_without_recorded_logprob_has_weight_one():
    assert loss.importance_weight(torch.tensor([-3.0]), torch.tensor([math.nan]), cap=2.0).item() == 1.0


def test_clipped_marks_only_tokens_whose_gradient_the_clip_takes():
    new = torch.log(torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1]))
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    marked = loss.clipped(new, torch.zeros(5), advantages, low=0.2, high=0.28)
    assert marked.tolist() == [True, False, False, True, False]


def test_k3_of_equal_policies_is_zero_and_never_negative():
    new = torch.linspace(-5, 0, 50)
    assert loss.k3(new, new).abs().max() == 0
    assert (loss.k3(new, new.flip(0)) >= 0).all()
