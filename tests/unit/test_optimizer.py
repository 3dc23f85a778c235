"""How long a step is: the learning rate of every step, warmed up by what the optimizer has seen."""

import pytest
import torch

from dukou.settings.learning import TrainerSettings
from learner.train.gradient import adamw, learning_rate, step


def master():
    return torch.nn.Parameter(torch.zeros(2))


def moved(parameter, optimizer, settings):
    parameter.grad = torch.tensor([3.0, -0.5])
    before = parameter.detach().clone()
    rate = step(optimizer, settings)
    return rate, (parameter.detach() - before).abs().max().item()


def test_without_a_warmup_every_step_has_the_full_rate():
    settings = TrainerSettings(learning_rate=1e-3)
    assert [learning_rate(settings, taken) for taken in (0, 1, 9)] == [1e-3] * 3


def test_a_warmup_rises_in_equal_parts_and_ends():
    settings = TrainerSettings(learning_rate=1e-3, warmup_steps=4)
    rates = [learning_rate(settings, taken) for taken in range(6)]
    assert rates == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])


def test_a_step_is_as_long_as_its_rate_says():
    settings = TrainerSettings(learning_rate=1e-3, warmup_steps=2, weight_decay=0)
    parameter = master()
    optimizer = adamw([parameter])
    assert moved(parameter, optimizer, settings) == pytest.approx((5e-4, 5e-4), rel=1e-3)
    assert moved(parameter, optimizer, settings) == pytest.approx((1e-3, 1e-3), rel=1e-3)


def test_a_large_epsilon_lets_steps_follow_the_gradients_size():
    by_sign, by_size = (
        TrainerSettings(learning_rate=1e-3, epsilon=epsilon, weight_decay=0) for epsilon in (1e-8, 30.0)
    )
    steps = []
    for settings in (by_sign, by_size):
        parameter = master()
        moved(parameter, adamw([parameter]), settings)
        steps.append((parameter[0] / parameter[1]).item())
    assert steps[0] == pytest.approx(-1, rel=1e-3)
    assert steps[1] == pytest.approx(-6, rel=0.1)


def test_a_restored_optimizer_goes_on_where_its_warmup_was_and_a_fresh_one_begins_again():
    settings = TrainerSettings(learning_rate=1e-3, warmup_steps=4)
    parameter = master()
    optimizer = adamw([parameter])
    moved(parameter, optimizer, settings)
    restored = adamw([parameter])
    restored.load_state_dict(optimizer.state_dict())
    assert moved(parameter, restored, settings)[0] == pytest.approx(5e-4)
    assert moved(parameter, adamw([parameter]), settings)[0] == pytest.approx(2.5e-4)
