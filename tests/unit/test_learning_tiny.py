"""The short form of the learning evidence: a random Llama unlearns tokens that its user dislikes."""

import uuid
from collections.abc import Callable

import numpy as np
import pytest
import torch

from dukou.settings.learning import LossSettings, TrainerSettings
from dukou.store.batches import BaselineState
from learner.batch import advantage
from learner.train import gradient, model, weights
from learner.train.samples import Sample
from tests.fakes.tiny_llama import VOCABULARY, save

STEPS, BATCH, PROMPT, ANSWER = 40, 32, 3, 10
DISLIKED = torch.arange(0, VOCABULARY, 3)

Advantages = Callable[[list[float]], list[float]]


@torch.no_grad()
def sampled(language_model, generator):
    """(BATCH, PROMPT + ANSWER) ids at T = 1, and the answers' log-probabilities."""
    ids = torch.randint(VOCABULARY, (BATCH, PROMPT), generator=generator)
    logprobs = []
    for _ in range(ANSWER):
        distribution = language_model(ids).logits[:, -1].log_softmax(-1)
        token = torch.multinomial(distribution.exp(), 1, generator=generator)
        logprobs.append(distribution.gather(1, token))
        ids = torch.cat([ids, token], 1)
    return ids, torch.cat(logprobs, 1)


def judged(share: float) -> float:
    """What the user says to an answer of which `share` is disliked: 1, 0 or −1."""
    return 1.0 if share < 0.25 else -1.0 if share > 0.35 else 0.0


def disliked_over_time(folder, advantages: Advantages) -> list[float]:
    """The share of disliked tokens in each step's fresh answers."""
    settings, loss = TrainerSettings(method="full"), LossSettings(kl=0.0)
    trained = weights.of(model.load(folder, torch.device("cpu")), settings, loss)
    optimizer = torch.optim.AdamW(trained.masters.values(), lr=5e-3)
    generator = torch.Generator().manual_seed(0)
    shares = []
    for _ in range(STEPS):
        ids, rollout = sampled(trained.model, generator)
        disliked = torch.isin(ids[:, PROMPT:], DISLIKED).float().mean(1)
        shares.append(float(disliked.mean()))
        rewards = [judged(share) for share in disliked.tolist()]
        samples = [
            Sample(uuid.UUID(int=row), ids[row].numpy(), PROMPT, rollout[row].numpy(), 1.0, a, r, 0, False)
            for row, (a, r) in enumerate(zip(advantages(rewards), rewards, strict=True))
        ]
        gradient.accumulate(trained, samples, loss, settings)
        optimizer.step()
        trained.spread()
    return shares


def running() -> Advantages:
    state = BaselineState()

    def centre(rewards: list[float]) -> list[float]:
        nonlocal state
        batch = [advantage.Observation(f"s{row}", "chat", reward) for row, reward in enumerate(rewards)]
        centred = advantage.centre(batch, state, half_life=3, deviation_floor=0.2)
        state = centred.state
        return centred.advantages

    return centre


def groups_of_one(rewards: list[float]) -> list[float]:
    return advantage.over_groups(np.array(rewards), list(range(len(rewards)))).tolist()


def flipped() -> Advantages:
    centre = running()
    return lambda rewards: centre([-reward for reward in rewards])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("tiny"))


def test_the_running_baseline_learns_from_single_answers(folder):
    shares = disliked_over_time(folder, running())
    assert shares[0] == pytest.approx(1 / 3, abs=0.06)
    assert shares[-1] < 0.08


def test_flipped_rewards_teach_the_opposite(folder):
    assert disliked_over_time(folder, flipped())[-1] > 0.6


def test_groups_of_one_learn_nothing(folder):
    """GRPO over groups of one has no advantage: the control that must stay flat."""
    shares = disliked_over_time(folder, groups_of_one)
    assert np.mean(shares[-5:]) == pytest.approx(np.mean(shares[:5]), abs=0.03)
