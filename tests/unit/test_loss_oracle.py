"""Loss and gradient norm against values on which TRL, verl, slime and a formula by hand agree to 4e-9."""

import math

import numpy as np
import pytest
import torch

from learner.batch import advantage
from learner.train import loss

LENGTHS = [7, 5, 3, 6, 7, 2, 4, 1]
REWARDS = np.array([1.0, -1, 0, 1, 1, 1, 1, -1])
GROUPS = [0] * 4 + [1] * 4
LOW, HIGH = 0.2, 0.28

POSITIONS = [(i, t) for i, length in enumerate(LENGTHS) for t in range(length)]
ROWS = torch.tensor([i for i, _ in POSITIONS])


def per_position(formula):
    return torch.tensor([formula(i, t) for i, t in POSITIONS], dtype=torch.float64)


LP = per_position(lambda i, t: -0.5 - 0.1 * ((3 * i + 5 * t) % 7))
OLD = LP + per_position(lambda i, t: 1.4 * math.sin(i + 2 * t))
REFERENCE = LP + per_position(lambda i, t: 0.3 * math.cos(2 * i + t))
ROLLOUT = OLD + per_position(lambda i, t: 1.2 * math.sin(3 * i + t))
TEACHER = OLD + per_position(lambda i, t: 0.6 * math.cos(i - t))

GRPO = advantage.over_groups(REWARDS, GROUPS)
NO_STD = advantage.over_groups(REWARDS, GROUPS, divide=False)
OVER_BATCH = advantage.over_batch(REWARDS)
RAW = advantage.raw(REWARDS)


def spread(per_sample):
    return torch.from_numpy(per_sample)[ROWS]


def taught(rewards, *, w_rl, known=slice(None)):
    teacher = torch.full_like(TEACHER, torch.nan)
    teacher[known] = TEACHER[known]
    return loss.with_teacher(rewards, OLD, teacher, w_rl=w_rl, w_opd=1.0)


def evaluate(advantages, *, old=OLD, low=LOW, high=HIGH, dual=None, how="token_mean", kl=0.0, tis=False):
    new = LP.clone().requires_grad_()
    per_token = loss.ppo_clip(new, old, advantages, low=low, high=high, dual=dual)
    if tis:
        per_token = per_token * loss.importance_weight(OLD, ROLLOUT, 2.0)
    per_token = per_token + kl * loss.k3(new, REFERENCE)
    weights = torch.tensor(loss.token_weights(LENGTHS, how, 16), dtype=torch.float64)[ROWS]
    value = (per_token * weights).sum()
    value.backward()
    return value.item(), new.grad.norm().item()


CASES = {
    "ppo clip, token mean": (spread(GRPO), {}, -0.10363875, 0.15259521),
    "sequence mean": (spread(GRPO), {"how": "sequence_mean"}, 0.08534954, 0.13551816),
    "dr grpo": (spread(NO_STD), {"how": "fixed_length"}, -0.02884267, 0.03995858),
    "with k3": (spread(GRPO), {"kl": 0.02}, -0.10319854, 0.15274607),
    "truncated importance sampling": (spread(GRPO), {"tis": True}, -0.02838440, 0.29531475),
    "dual clip": (spread(GRPO), {"dual": 3.0}, -0.13454351, 0.05379052),
    "raw reward": (spread(RAW), {}, -0.46760804, 0.12214246),
    "distillation": (taught(spread(RAW), w_rl=0.0), {}, 0.06476707, 0.07936316),
    "combine": (taught(spread(RAW), w_rl=1.0), {"kl": 0.02}, -0.53188641, 0.09574843),
    "batch, sequence mean": (spread(OVER_BATCH), {"how": "sequence_mean"}, 0.10920686, 0.15948872),
}


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_norm_equal_the_oracle(case):
    advantages, options, value, norm = CASES[case]
    assert evaluate(advantages, **options) == pytest.approx((value, norm), abs=1e-6)


@pytest.mark.parametrize(
    ("mutation", "value"),
    [
        ({"high": 0.2}, -0.08261211),
        ({"low": 0.28, "high": 0.2}, -0.09558874),
        ({"low": 1 - 1e-9, "high": 1e9}, -0.48122039),
        ({"old": ROLLOUT}, 0.23947278),
    ],
)
def test_a_wrong_clip_or_a_wrong_old_would_be_seen(mutation, value):
    wrong, _ = evaluate(spread(GRPO), **mutation)
    assert wrong == pytest.approx(value, abs=1e-6)
    assert abs(wrong - -0.10363875) > 5e-3


def test_k3_averages_to_the_oracles_value():
    assert loss.k3(LP, REFERENCE).mean().item() == pytest.approx(0.02201076, abs=1e-8)


def test_advantages_equal_the_oracle():
    grpo = [0.783268, -1.305446, -0.261089, 0.783268, 0.49995, 0.49995, 0.49995, -1.49985]
    np.testing.assert_allclose(GRPO, grpo, atol=1e-6)
    left_out = [1, -1.666667, -0.333333, 1, 0.666667, 0.666667, 0.666667, -2]
    np.testing.assert_allclose(advantage.leave_one_out(REWARDS, GROUPS), left_out, atol=1e-6)
    np.testing.assert_allclose(OVER_BATCH[:3], [0.682147, -1.500722, -0.409288], atol=1e-6)


def test_where_no_teacher_scored_only_the_reward_counts():
    """A stand-in for the missing teacher would leak the engine's mismatch into the advantage."""
    half = taught(spread(RAW), w_rl=2.0, known=slice(0, 10))
    torch.testing.assert_close(half[10:], 2.0 * spread(RAW)[10:])
    torch.testing.assert_close(half[:10], (2.0 * spread(RAW) + TEACHER - OLD)[:10])
    assert evaluate(half) != evaluate(2.0 * spread(RAW) + ROLLOUT - OLD)
