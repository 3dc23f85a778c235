"""What a token that top-p let through weighs, and what that does to those that it cut away: exact, by sums.

p is the whole softmax, K what top-p keeps, Z = p(K): the engine samples from p/Z over K and records log p.
"""

import pytest
import torch

from learner.train import loss

LOGITS = torch.tensor([1.5, 1.0, 0.2, -0.5, -1.0, -2.0], dtype=torch.float64)
TOP_P = 0.8


def kept(probabilities):
    """The likeliest tokens until they have TOP_P, as the engine cuts: the one that reaches it is kept."""
    ordered, order = probabilities.sort(descending=True)
    return order[(ordered.cumsum(0) - ordered) <= TOP_P]


def expected_gradient(advantages):
    """Of the loss, in the logits, over all tokens that the engine may sample; an unchanged policy."""
    logits = LOGITS.clone().requires_grad_()
    tokens = kept(LOGITS.softmax(0))
    new = logits.log_softmax(0)[tokens]
    old = rollout = new.detach()
    per_token = loss.ppo_clip(new, old, advantages(tokens), low=0.2, high=0.28)
    per_token = per_token * loss.importance_weight(old, rollout, 2.0)
    sampled = LOGITS.softmax(0)[tokens]
    (per_token * sampled / sampled.sum()).sum().backward()
    return logits.grad, tokens


def cut(tokens):
    return [token for token in range(len(LOGITS)) if token not in tokens]


def test_an_unchanged_policy_weighs_one_as_if_nothing_had_been_cut():
    """K15: log .5 was recorded where .5/.8 was sampled from. 1/Z is left out, at most 1/top_p."""
    recorded = torch.tensor([0.5]).log()
    assert loss.importance_weight(recorded, recorded, 2.0).tolist() == [1.0]
    z = LOGITS.softmax(0)[kept(LOGITS.softmax(0))].sum().item()
    assert TOP_P <= z < 1


def test_praise_of_every_token_takes_from_those_cut_away():
    """The gradient that is left over is that of log Z; over the whole softmax it would be 0."""
    gradient, tokens = expected_gradient(torch.ones_like)
    logits = LOGITS.clone().requires_grad_()
    (-logits.softmax(0)[tokens].sum().log()).backward()
    assert gradient.tolist() == pytest.approx(logits.grad.tolist())
    assert len(cut(tokens)) == 3
    assert all(gradient[token] > 0.01 for token in cut(tokens))


def test_with_centred_advantages_the_tokens_cut_away_stay_as_they_are():
    def centred(tokens):
        sampled = LOGITS.softmax(0)[tokens]
        reward = torch.arange(len(tokens), dtype=torch.float64)
        return reward - (reward * sampled / sampled.sum()).sum()

    gradient, tokens = expected_gradient(centred)
    assert gradient[cut(tokens)].tolist() == pytest.approx([0.0] * len(cut(tokens)), abs=1e-12)
    assert gradient.abs().max() > 0.01
